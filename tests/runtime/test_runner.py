"""The decode loop, seen from its clients: sharing, order, faults."""

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio import to_thread

from runnerd.client import Client, GenerateOptions, RequestFailed, connect
from runnerd.config import Config
from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import Options
from runnerd.engine.base import EngineConfig
from runnerd.errors import EngineBroken
from runnerd.runner import Runner
from runnerd_protocol.messages import (
    Accepted,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Status,
)
from tests.daemon import PATIENCE_S, Daemon, raw_client, running_daemon
from tests.engines import SteppedEngine

pytestmark = pytest.mark.anyio


async def hang(daemon: Daemon, client: Client, stack: AsyncExitStack) -> None:
    """Have a stream in a step that does not end."""
    daemon.engine.faults.hang()
    await stack.enter_async_context(client.generate("hang", shift=True))
    await to_thread.run_sync(daemon.engine.faults.hanging.wait)


# --- sharing ------------------------------------------------------------------------------------


async def test_64_streams_at_once_equal_each_alone() -> None:
    n_streams = 64

    def options(i: int) -> GenerateOptions:
        return {
            "max_tokens": 8 + i % 5,
            "temperature": (0.0, 0.9)[i % 2],
            "seed": i,
            "return_tokens": True,
        }

    async def tokens(client: Client, i: int) -> tuple[str, list[int]]:
        async with client.generate(f"{i} is the number of " + "x" * (i % 7), **options(i)) as s:
            deltas = [delta async for delta in s]
        return "".join(d.text for d in deltas), [t for d in deltas for t in d.tokens]

    together: dict[int, tuple[str, list[int]]] = {}

    async def note(client: Client, i: int) -> None:
        together[i] = await tokens(client, i)

    async with (
        running_daemon("layers=1,dim=16", n_slots=8, n_ctx=128) as daemon,
        connect(daemon.path) as client,
        connect(daemon.path) as other,
    ):
        async with anyio.create_task_group() as tasks:
            for i in range(n_streams):
                tasks.start_soon(note, (client, other)[i % 2], i)
        await daemon.has_all_slots()
        for i in range(n_streams):
            assert together[i] == await tokens(client, i)


async def test_a_long_prompt_starves_neither_streams_nor_a_short_prompt() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_batch=32, n_ctx=2048) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "a"), Generate(2, "b"))
        await engine.at_step()
        await engine.step(2)
        await client.send(Generate(3, "x" * 1000), Generate(4, "short", max_tokens=1))
        await client.receive_a(Accepted, 4)
        n_before = len(engine.batches)
        await engine.step(6)
        later = [{span.seq_id for span in batch.spans} for batch in engine.batches[n_before:]]
        assert all({1, 2} <= seq_ids for seq_ids in later)
        assert any(4 in seq_ids for seq_ids in later)
        assert all(batch.n_rows <= 32 for batch in engine.batches)
        finished = await client.receive_a(Finished, 4)
        assert finished.n_generated == 1
        engine.let_all_go()


async def test_requests_start_in_the_order_in_which_they_came() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(0, "a", max_tokens=2))
        await engine.at_step()
        await client.send(*(Generate(i, "a" * i, max_tokens=1) for i in range(1, 20)))
        await client.receive_a(Accepted, 19)
        await other.send(Generate(20, "y", max_tokens=1))
        await other.receive_a(Accepted, 20)
        engine.let_all_go()
        ended = [(await client.receive_a(Finished)).request_id for _ in range(20)]
        assert ended == list(range(20))
        await other.receive_a(Finished)
        seq_ids = [span.seq_id for batch in engine.batches for span in batch.spans]
        assert seq_ids == sorted(seq_ids)


async def test_a_request_is_not_passed_over_for_later_ones_with_a_cached_prefix() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=2) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        prompt = "common prefix " * 5
        await client.send(Generate(0, prompt, max_tokens=3), Generate(1, prompt, max_tokens=3))
        await engine.at_step()
        await client.send(Generate(2, "unique", max_tokens=1))
        await client.send(*(Generate(i, f"{prompt}{i}", max_tokens=1) for i in range(3, 12)))
        await client.receive_a(Accepted, 11)
        engine.let_all_go()
        ended = [(await client.receive_a(Finished)).request_id for _ in range(12)]
        assert ended.index(2) <= 3


async def test_the_queue_holds_exactly_what_it_says() -> None:
    n_slots, max_queue = 2, 5
    async with (
        running_daemon(load=SteppedEngine, n_slots=n_slots, max_queue=max_queue) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(*(Generate(i, "x", max_tokens=2) for i in range(n_slots)))
        await engine.at_step()
        await engine.step()
        await client.send(
            *(Generate(i, "x", max_tokens=1) for i in range(n_slots, n_slots + max_queue))
        )
        await client.receive_a(Accepted, n_slots + max_queue - 1)
        await other.send(*(Generate(i, "x") for i in range(30)))
        for i in range(30):
            failed = await other.receive_a(Failed)
            assert (failed.request_id, failed.code, failed.retryable) == (i, "overloaded", True)
            assert failed.details == {"n_waiting": max_queue, "max_queue": max_queue}
        await other.send(GetStatus(1))
        status = await other.receive_a(Status)
        assert (status.n_waiting, status.n_slots_free) == (max_queue, 0)
        engine.let_all_go()
        for _ in range(n_slots + max_queue):
            assert (await client.receive_a(Finished)).reason == "length"
        await other.send(Generate(1, "x", max_tokens=1))
        assert (await other.receive_a(Finished)).reason == "length"
        await daemon.has_all_slots()


async def test_a_queue_of_0_serves_as_many_as_there_are_slots() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=2, max_queue=0) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(*(Generate(i, "x", max_tokens=1) for i in range(3)))
        assert (await client.receive_a(Failed)).request_id == 2
        daemon.engine_as(SteppedEngine).let_all_go()
        assert {(await client.receive_a(Finished)).request_id for _ in range(2)} == {0, 1}


# --- faults -------------------------------------------------------------------------------------


async def test_a_sequence_without_logits_fails_alone() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        daemon.engine.faults.nan_for(2)
        results: dict[int, str] = {}

        async def run(i: int) -> None:
            try:
                results[i] = (await client.complete("x", max_tokens=20)).finished.reason
            except RequestFailed as err:
                results[i] = err.failed.code

        async with anyio.create_task_group() as tasks:
            for i in range(4):
                tasks.start_soon(run, i)
        assert sorted(results.values()) == ["engine_failed", "length", "length", "length"]
        assert (await client.status()).n_failed == 1
        await daemon.has_all_slots()


async def test_a_full_cache_is_no_business_of_the_clients() -> None:
    async with running_daemon("layers=0,no_kv_at=2") as daemon, connect(daemon.path) as client:
        assert (await client.complete("x", max_tokens=5)).finished.n_generated == 5


async def test_a_broken_engine_fails_everybody_and_ends_the_runner() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=2) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(*(Generate(i, "x") for i in range(4)))
        await engine.at_step()
        engine.faults.broken_at(1)
        engine.let_go()
        failed = [await client.receive_a(Failed) for _ in range(4)]
        assert {f.request_id for f in failed} == {0, 1, 2, 3}
        assert {f.code for f in failed} == {"engine_failed"}
        await daemon.has_ended.wait()
        assert isinstance(daemon.error, EngineBroken)
        await client.send(GetStatus(9), Generate(10, "x"))
        assert (await client.receive_a(Status)).state == "failed"
        assert (await client.receive_a(Failed, 10)).code == "shutting_down"


async def test_status_is_answered_and_says_stalled_while_a_step_hangs() -> None:
    async with (
        running_daemon(step_timeout_s=0.1) as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        await hang(daemon, client, stack)
        with anyio.fail_after(PATIENCE_S):
            async with client.subscribe(0.05) as statuses:
                while (status := await anext(statuses)).state != "stalled":
                    assert status.state == "ready"
                assert status.step_age_s >= 0.1
                daemon.engine.faults.release()
                while (status := await anext(statuses)).state != "ready":
                    pass


async def test_a_stall_and_its_end_are_told_without_being_asked() -> None:
    async with (
        running_daemon(step_timeout_s=0.1) as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        await hang(daemon, client, stack)
        with anyio.fail_after(PATIENCE_S):
            async with client.subscribe(3600) as statuses:
                while (await anext(statuses)).state != "stalled":
                    pass
                daemon.engine.faults.release()
                while (await anext(statuses)).state != "ready":
                    pass


async def test_connections_and_cancels_are_served_while_a_step_hangs() -> None:
    async with (
        running_daemon() as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        await hang(daemon, client, stack)
        with anyio.fail_after(PATIENCE_S):
            for _ in range(50):
                async with connect(daemon.path) as other:
                    assert (await other.status()).step_age_s > 0
            async with connect(daemon.path) as other, other.generate("waits for nothing"):
                pass
            daemon.engine.faults.release()
        await stack.aclose()
        await daemon.has_all_slots()


async def test_cancelling_the_runner_ends_it_though_streams_run() -> None:
    runner = Runner(Config(EngineConfig("layers=0", "reference")), SteppedEngine)
    ended: list[object] = []
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            engine = await runner.vocabulary.loaded()
            assert isinstance(engine, SteppedEngine)
            runner.submit(Prompt((1, 2)), Options(shift=True), lambda e: ended.append(e.ending))
            await engine.at_step()
            tasks.cancel_scope.cancel()
            engine.let_all_go()
    assert str(ended[-1]) == "the decode loop has ended"


async def test_a_listener_that_fails_costs_nobody_else_the_end() -> None:
    runner = Runner(Config(EngineConfig("layers=0", "reference")), SteppedEngine)
    ended: list[str] = []

    def fail(emission: Emission) -> None:
        raise RuntimeError("a bug")

    async def run() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            await runner.run()
        await runner.close()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            engine = await runner.vocabulary.loaded()
            assert isinstance(engine, SteppedEngine)
            for listener in (fail, lambda e: ended.append(str(e.ending))):
                runner.submit(Prompt((1, 2)), Options(max_tokens=1), listener)
            engine.let_all_go()
    assert ended == ["the decode loop has ended"]
