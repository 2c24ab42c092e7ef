"""Whoever leaves, at whatever moment, costs nobody anything: neither slots nor time."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from time import monotonic

import anyio
import pytest
from msgspec.structs import replace

from runnerd.client import RequestFailed, connect
from runnerd_protocol.messages import Accepted, Cancel, Delta, Finished, Generate
from tests.daemon import PATIENCE_S, Daemon, RawClient, raw_client, running_daemon
from tests.e2e.asking import GREEDY, IMPATIENCE_S, ask, loosely

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2,end_bias=-100"
ABORT_S = 0.2  # for a step to be stopped
SLOW_S = 4.0  # what a step takes if it is not
PROMPT = "a prompt that takes several batches to evaluate. " * 8
Leave = Callable[[RawClient], Awaitable[None]]


async def by_cancel(client: RawClient) -> None:
    await client.send(Cancel(1))


async def by_close(client: RawClient) -> None:
    await client.stream.aclose()


async def by_reset(client: RawClient) -> None:
    client.socket.setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
    await client.stream.aclose()


WAYS: list[Leave] = [by_cancel, by_close, by_reset]


async def is_idle(daemon: Daemon) -> None:
    await daemon.until(lambda: daemon.runner.batcher is None or not daemon.runner.batcher.seq_ids)


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("kind", ["", ",window=16", ",recurrent=1"])
async def test_whoever_leaves_amid_its_prompt_stops_the_step_and_spoils_nothing(
    leave: Leave, kind: str
) -> None:
    options = f"{MODEL}{kind}"
    async with running_daemon(options) as daemon, connect(daemon.path) as client:
        wanted = (await ask(client, PROMPT, max_tokens=8, **GREEDY)).tokens
    # A batch of 64 rows is looked at four times: before each 16 of them.
    slow = f"{options},step_ms={SLOW_S * 1000:.0f}"
    async with (
        running_daemon(slow, n_slots=1, n_batch=64) as daemon,
        raw_client(daemon) as client,
        connect(daemon.path) as other,
    ):
        await client.send(Generate(1, PROMPT, max_tokens=8, temperature=0.0))
        await client.receive_a(Accepted)
        await daemon.until(lambda: daemon.runner.watches.step.age_s > 0)
        left_at = monotonic()
        await leave(client)
        if leave is by_cancel:
            assert (await client.receive_a(Finished)).reason == "cancelled"
        await is_idle(daemon)
        assert monotonic() - left_at < ABORT_S + IMPATIENCE_S / 4
        daemon.engine._options = replace(daemon.engine._options, step_ms=0)
        assert (await ask(other, PROMPT, max_tokens=8, **GREEDY)).tokens == wanted
        await daemon.has_all_slots()


@pytest.mark.parametrize("leave", WAYS)
async def test_whoever_leaves_amid_its_text_frees_all_slots_within_a_few_steps(
    leave: Leave,
) -> None:
    async with (
        running_daemon(f"{MODEL},step_ms=20", n_slots=3) as daemon,
        connect(daemon.path) as neighbour,
        raw_client(daemon) as client,
    ):
        async with neighbour.generate("beside", max_tokens=60, **GREEDY) as beside:
            await anext(beside)
            await client.send(Generate(1, "x", shift=True), Generate(2, "y", shift=True))
            for request_id in (1, 2):
                await client.receive_a(Delta, request_id)
            await client.send(Cancel(2))
            await leave(client)
            n_steps = daemon.runner.figures.n_steps
            assert daemon.runner.batcher is not None
            pool = daemon.runner.batcher.residency.pool
            await daemon.until(lambda: pool.n_free == 2)
            assert daemon.runner.figures.n_steps <= n_steps + 3
            text = "".join([delta.text async for delta in beside])
        alone = await ask(neighbour, "beside", max_tokens=60, cache_scope="alone", **GREEDY)
        assert alone.text.endswith(text)
        assert alone.finished.n_generated == 60


async def test_who_leaves_the_queue_never_runs() -> None:
    async with (
        running_daemon(f"{MODEL},step_ms=5", n_slots=1) as daemon,
        connect(daemon.path) as holder,
    ):
        async with holder.generate("hold", shift=True) as running:
            await anext(running)
            for leave in WAYS:
                async with raw_client(daemon) as client:
                    await client.send(Generate(1, PROMPT))
                    await client.receive_a(Accepted)
                    await leave(client)
                    if leave is by_cancel:
                        assert (await client.receive_a(Finished)).n_generated == 0
                assert daemon.runner.batcher is not None
                await daemon.until(lambda: daemon.runner.n_waiting == 0)
        await is_idle(daemon)
        assert daemon.runner.batcher is not None
        assert daemon.runner.batcher.n_prefilled < len(PROMPT)


async def test_500_requests_too_many_are_each_refused_at_once_with_numbers() -> None:
    n_slots, max_queue, n_surplus = 2, 10, 500
    async with (
        running_daemon(f"{MODEL},step_ms=2", n_slots=n_slots, max_queue=max_queue) as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        held = [
            await stack.enter_async_context(client.generate(f"hold {i}", max_tokens=400))
            for i in range(n_slots)
        ]
        for stream in held:
            await anext(stream)
        queued = [
            await stack.enter_async_context(client.generate(f"wait {i}", max_tokens=2))
            for i in range(max_queue)
        ]
        await daemon.until(lambda: daemon.runner.n_waiting == max_queue)
        refused = []

        async def surplus() -> None:
            async with connect(daemon.path) as other:
                for _ in range(n_surplus // 50):
                    with pytest.raises(RequestFailed) as caught:
                        await other.complete("too many")
                    refused.append(caught.value.failed)
                assert (await other.status()).n_waiting == max_queue

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(surplus)
        assert len(refused) == n_surplus
        assert {failed.code for failed in refused} == {"overloaded"}
        assert all(failed.retryable for failed in refused)
        assert {failed.details["max_queue"] for failed in refused} == {max_queue}
        for stream in queued:
            assert (await stream.completion()).finished.n_generated == 2


@pytest.mark.parametrize("field", ["queue_timeout_s", "timeout_s"])
async def test_who_waits_too_long_is_told_with_numbers_and_never_runs(
    field: str,
) -> None:
    async with (
        running_daemon(f"{MODEL},step_ms=5", n_slots=1) as daemon,
        connect(daemon.path) as client,
    ):
        async with client.generate("hold", shift=True) as running:
            await anext(running)
            with pytest.raises(RequestFailed) as caught:
                await client.complete("late", **loosely({field: 0.1}))
            failed = caught.value.failed
            assert (failed.code, failed.retryable) == ("queue_timeout", True)
            assert failed.details["n_ahead"] is not None
            assert daemon.runner.n_waiting == 0


async def test_a_time_limit_ends_a_text_with_what_there_is() -> None:
    async with (
        running_daemon(f"{MODEL},step_ms=10", n_slots=1) as daemon,
        connect(daemon.path) as client,
    ):
        started_at = monotonic()
        answer = await ask(client, "Once", shift=True, timeout_s=0.5, **GREEDY)
        assert monotonic() - started_at < 0.5 + IMPATIENCE_S
        assert answer.finished.reason == "timeout"
        assert answer.finished.n_generated == len(answer.tokens) > 0
        whole = await ask(client, "Once", max_tokens=len(answer.tokens), **GREEDY)
        assert whole.tokens == answer.tokens
        await daemon.has_all_slots()
