"""How far a prompt is, for those who want to know."""

import pytest

from runnerd.client import connect
from runnerd_protocol.messages import Accepted, Cancel, Finished, Generate, PromptProgress
from tests.daemon import RawClient, raw_client, running_daemon
from tests.engines import SteppedEngine

pytestmark = pytest.mark.anyio

MODEL = "layers=1,dim=16,heads=2,end_bias=-100"
PROMPT = "word " * 40  # 201 inputs with BOS


async def progress(client: RawClient, request: Generate) -> list[PromptProgress]:
    await client.send(request)
    events = []
    while not isinstance(message := await client.receive(), Finished):
        events += [message] if isinstance(message, PromptProgress) else []
    return events


@pytest.mark.parametrize("n_batch", [16, 32, 64, 67, 201, 256])
async def test_a_prompt_tells_of_each_step_from_what_is_cached_to_its_end(n_batch: int) -> None:
    """Of events that wait for a slow reader only the last is sent: here each is read at once."""
    async with (
        running_daemon(load=SteppedEngine, n_batch=n_batch) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, PROMPT, max_tokens=2, return_progress=True))
        events = []
        for n_rows in [*range(0, 201, n_batch), 201]:
            event = await client.receive_a(PromptProgress)
            events.append(event)
            assert (event.n_prompt, event.n_cached, event.n_ahead) == (201, 0, 0)
            assert event.n_processed == min(n_rows, 201)
            await engine.at_step()
            engine.let_go()
        assert len(events) == -(-201 // n_batch) + 1
        engine.let_all_go()
        finished = await client.receive_a(Finished)
        assert finished.n_cached == 0


@pytest.mark.parametrize("n_batch", [16, 64])
async def test_with_a_warm_cache_it_starts_where_the_cache_ends(n_batch: int) -> None:
    async with running_daemon(MODEL, n_batch=n_batch) as daemon, raw_client(daemon) as client:
        await progress(client, Generate(1, PROMPT, max_tokens=1))
        longer = Generate(2, PROMPT + "and more " * 10, max_tokens=1, return_progress=True)
        events = await progress(client, longer)
        assert events[0].n_processed == events[0].n_cached == 201
        assert {event.n_cached for event in events} == {201}
        assert {event.n_prompt for event in events} == {291}
        processed = [event.n_processed for event in events]
        assert processed == sorted(set(processed))
        assert processed[-1] == 291


async def test_whoever_does_not_ask_is_not_told() -> None:
    async with running_daemon(MODEL, n_batch=16) as daemon, raw_client(daemon) as client:
        assert not await progress(client, Generate(1, PROMPT, max_tokens=1))


async def test_a_cut_prompt_ends_at_what_is_left_of_it() -> None:
    async with running_daemon(MODEL, n_ctx=64, n_batch=64) as daemon, raw_client(daemon) as client:
        request = Generate(1, PROMPT, max_tokens=4, truncate=True, return_progress=True)
        events = await progress(client, request)
        assert events[-1].n_processed == 60


async def test_who_waits_is_told_how_many_are_before_it() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
        connect(daemon.path) as other,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "a", shift=True))
        await engine.at_step()
        await client.send(*(Generate(i, "b", shift=True) for i in (2, 3)))
        await client.send(Generate(4, "c", max_tokens=1, return_progress=True))
        n_ahead = (await client.receive_a(Accepted, 4)).n_ahead
        assert n_ahead == 2
        assert (await other.status()).n_waiting == 3
        for cancelled in (2, 3):
            await client.send(Cancel(cancelled))
            n_ahead -= 1
            assert (await client.receive_a(PromptProgress, 4)).n_ahead == n_ahead
        await client.send(Cancel(1))
        engine.let_all_go()
        assert (await client.receive_a(PromptProgress, 4)).n_ahead == 0
        assert (await client.receive_a(Finished, 4)).n_generated == 1
