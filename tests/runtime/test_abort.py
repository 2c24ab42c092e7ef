"""A cancel while a prompt is evaluated stops the step, and harms nobody else in it."""

import anyio
import pytest

from runnerd_protocol.messages import Cancel, Delta, Finished, Generate
from tests.daemon import RawClient, raw_client, running_daemon
from tests.engines import SteppedEngine

pytestmark = pytest.mark.anyio

LONG = Generate(1, "a" * 100)
OTHERS = (
    Generate(2, "b" * 70, max_tokens=6, temperature=0.0),
    Generate(3, "c" * 90, max_tokens=6, temperature=0.0),
)


async def said(client: RawClient) -> dict[int, str]:
    """Return the texts of the other requests, once both have ended."""
    texts = dict.fromkeys((2, 3), "")
    n_left = len(texts)
    while n_left > 0:
        message = await client.receive()
        if isinstance(message, Delta):
            texts[message.request_id] += message.text
        elif isinstance(message, Finished):
            assert message.reason == "length"
            n_left -= 1
    return texts


async def test_a_cancel_ends_a_step_that_would_take_long() -> None:
    async with (
        running_daemon("layers=0,step_ms=50000", load=SteppedEngine) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(LONG)
        await daemon.engine_as(SteppedEngine).at_step()
        daemon.engine_as(SteppedEngine).let_all_go()
        with anyio.fail_after(10):
            await client.send(Cancel(1))
            assert (await client.receive_a(Finished, 1)).reason == "cancelled"
        await daemon.until(lambda: daemon.runner.watches.step.age_s == 0)


async def test_others_in_a_step_that_was_stopped_say_what_they_say_alone() -> None:
    options = "layers=1,dim=16"
    async with running_daemon(options) as daemon, raw_client(daemon) as client:
        await client.send(*OTHERS)
        alone = await said(client)
    async with (
        running_daemon(options, n_batch=300, load=SteppedEngine) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(LONG, *OTHERS)
        batch = await engine.at_step()
        assert len(batch.spans) == 3
        batcher = daemon.runner.batcher
        assert batcher is not None
        await client.send(Cancel(1))
        await daemon.until(lambda: batcher.wants_abort)
        engine.let_all_go()
        assert (await client.receive_a(Finished, 1)).n_generated == 0
        assert await said(client) == alone
        batcher.check()
        # The step that was stopped, one for what was left of it, and one for each later token.
        assert len(engine.batches) == 1 + 6
