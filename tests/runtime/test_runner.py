"""The decode loop, seen from its clients: sharing, order, faults, load and end."""

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from runnerd.client import Client, RequestFailed, connect
from runnerd.config import Config
from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import Options
from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.errors import BadModel, EngineBroken, LoadCancelled, LoadFailed
from runnerd.runner import Runner
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Delta,
    Detokenize,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    Status,
    Tokenize,
    Tokens,
)
from tests.daemon import PATIENCE_S, Daemon, RawClient, raw_client, running_daemon, started
from tests.engines import GatedLoad, SlowTokenizer, SteppedEngine

pytestmark = pytest.mark.anyio


async def hang(daemon: Daemon, client: Client, stack: AsyncExitStack) -> None:
    """Have a stream in a step that does not end."""
    daemon.engine.faults.hang()
    await stack.enter_async_context(client.generate("hang", shift=True))
    await to_thread.run_sync(daemon.engine.faults.hanging.wait)


# --- sharing ------------------------------------------------------------------------------------


async def test_64_streams_at_once_equal_each_alone() -> None:
    n_streams = 64

    def options(i: int) -> dict[str, object]:
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
            engine = await runner.loaded()
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
            engine = await runner.loaded()
            assert isinstance(engine, SteppedEngine)
            for listener in (fail, lambda e: ended.append(str(e.ending))):
                runner.submit(Prompt((1, 2)), Options(max_tokens=1), listener)
            engine.let_all_go()
    assert ended == ["the decode loop has ended"]


# --- load ---------------------------------------------------------------------------------------


async def test_requests_come_in_during_the_load_and_are_served_after_it_in_order() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False, n_slots=1) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        await daemon.until(lambda: daemon.runner.load_fraction == 0.5)
        for i in range(6):
            await (client, other)[i % 2].send(Generate(i, "x", max_tokens=1))
            accepted = await (client, other)[i % 2].receive_a(Accepted)
            assert (accepted.state, accepted.load_fraction) == ("loading", 0.5)
            assert accepted.n_ahead == max(0, i - 1)
        await client.send(GetStatus(9))
        status = await client.receive_a(Status)
        assert (status.state, status.load_phase, status.n_waiting) == ("loading", "weights", 5)
        order: list[int] = []

        async def note_ends(side: RawClient) -> None:
            for _ in range(3):
                order.append((await side.receive_a(Finished)).request_id)

        load.let_go()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_ends, client)
            tasks.start_soon(note_ends, other)
        assert order[0::2] == sorted(order[0::2])
        assert sorted(order) == list(range(6))
        await daemon.has_all_slots()


@pytest.mark.parametrize(
    ("error", "text"),
    [(BadModel("cut short"), "cut short"), (RuntimeError("a bug"), "internal error")],
)
async def test_a_failed_load_fails_whoever_waits_and_whoever_comes(
    error: Exception, text: str
) -> None:
    load = GatedLoad(error)
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x"), Generate(2, "y"))
        await client.receive_a(Accepted, 2)
        load.let_go()
        for _ in range(2):
            failed = await client.receive_a(Failed)
            assert failed.code == "load_failed"
            assert text in failed.message
        await daemon.has_ended.wait()
        assert daemon.error is error
        await client.send(Generate(3, "z"), GetStatus(4))
        assert (await client.receive_a(Failed)).code == "load_failed"
        assert (await client.receive_a(Status)).state == "failed"


async def test_who_waited_for_the_load_is_not_passed_by_a_newcomer() -> None:
    load = GatedLoad()
    runner = Runner(Config(EngineConfig("layers=0", "reference")), load)
    order: list[int] = []

    async def wait(number: int) -> None:
        await runner.loaded()
        order.append(number)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            async with anyio.create_task_group() as waiters:
                for number in range(5):
                    waiters.start_soon(wait, number)
                    await anyio.wait_all_tasks_blocked()
                load.let_go()
                while not order:
                    await checkpoint()
                await wait(5)
            runner.stop()
        await runner.close()
    assert order == [0, 1, 2, 3, 4, 5]


async def test_an_engine_that_cannot_be_scheduled_fails_the_load() -> None:
    runner = Runner(Config(EngineConfig("layers=0", "reference", n_ctx=1)), open_engine)
    refused: list[str] = []

    async def wait() -> None:
        try:
            await runner.loaded()
        except LoadFailed as err:
            refused.append(str(err))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(AssertionError, match="one sequence alone"):
                await runner.run()
        await runner.close()
    assert refused == ["the model could not be loaded: an internal error"]


# --- the end ------------------------------------------------------------------------------------


async def test_stopping_refuses_what_waits_and_finishes_what_runs() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", max_tokens=5), Generate(2, "y"))
        await engine.at_step()
        daemon.runner.stop()
        assert (await client.receive_a(Failed, 2)).code == "shutting_down"
        await client.send(Generate(3, "z"), GetStatus(4))
        failed = await client.receive_a(Failed, 3)
        assert (failed.code, failed.retryable) == ("shutting_down", True)
        assert (await client.receive_a(Status)).state == "draining"
        engine.let_all_go()
        finished = await client.receive_a(Finished)
        assert (finished.reason, finished.n_generated) == ("length", 5)
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert daemon.error is None
        assert daemon.runner.state == "stopped"


async def test_stopping_during_the_load_refuses_whoever_waits_at_once() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x"))
        await client.receive_a(Accepted)
        daemon.runner.stop()
        assert (await client.receive_a(Failed)).code == "shutting_down"
        load.let_go()
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()


async def test_a_load_that_looks_is_stopped_amid_its_phases() -> None:
    config = Config(EngineConfig("layers=0", "reference"))
    phases: list[str] = []

    def load(engine: EngineConfig, progress: LoadProgress) -> ReferenceEngine:
        def told(phase: str, fraction: float) -> bool:
            phases.append(phase)
            return progress(phase, fraction)

        with pytest.raises(LoadCancelled):
            ReferenceEngine(engine, parse_options(engine.model), told)
        raise LoadCancelled("as told")

    runner = Runner(config, load)
    runner.stop()
    with pytest.raises(LoadCancelled):
        await runner.run()
    assert set(phases) == {"open"}
    assert runner.state == "stopped"


async def test_after_the_drain_everybody_is_cancelled_with_the_text_so_far() -> None:
    async with (
        running_daemon(load=SteppedEngine) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x"), Generate(2, "y"))
        await engine.at_step()
        await engine.step(3)
        daemon.runner.stop()
        daemon.runner.cancel_all()
        engine.let_all_go()
        ends = [await client.receive_a(Finished) for _ in range(2)]
        assert {end.reason for end in ends} == {"cancelled"}
        assert {end.n_text_bytes > 0 for end in ends} == {True}


async def test_giving_up_tells_everybody_though_a_step_hangs() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        daemon.engine.faults.hang()
        await client.send(Generate(1, "x"))
        await to_thread.run_sync(daemon.engine.faults.hanging.wait)
        await client.send(Generate(2, "y"))
        await client.receive_a(Accepted, 2)
        daemon.runner.give_up("it does not end")
        failed = [await client.receive_a(Failed) for _ in range(2)]
        assert {(f.code, f.message) for f in failed} == {("engine_failed", "it does not end")}


async def test_a_step_that_ends_after_giving_up_ends_the_runner_quietly() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        daemon.engine.faults.hang()
        await client.send(Generate(1, "x"))
        await to_thread.run_sync(daemon.engine.faults.hanging.wait)
        daemon.runner.give_up("it does not end")
        await client.receive_a(Failed)
        daemon.engine.faults.release()
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert daemon.error is None
        assert daemon.runner.state == "failed"


async def test_giving_up_ends_a_runner_that_has_nothing_to_do() -> None:
    async with running_daemon() as daemon:
        daemon.runner.give_up("no reason")
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()


async def test_the_engine_is_closed_only_after_the_text_being_tokenized() -> None:
    closed = anyio.Event()

    async def close(daemon: Daemon) -> None:
        await daemon.runner.close()
        closed.set()

    async with (
        running_daemon(load=SlowTokenizer) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
        anyio.create_task_group() as tasks,
    ):
        engine = daemon.engine_as(SlowTokenizer)
        await client.send(Tokenize(1, "x" * 10_000))
        await to_thread.run_sync(engine.started.wait)
        await other.send(Tokenize(2, "x" * 10_000), GetStatus(3))
        await other.receive_a(Status)
        daemon.runner.stop()
        await daemon.has_ended.wait()
        tasks.start_soon(close, daemon)
        await other.send(Tokenize(4, "short"), Detokenize(5, [1]), GetModel(6))
        for _ in range(3):
            assert (await other.receive_a(Failed)).code == "shutting_down"
        assert not closed.is_set()
        assert not engine.may_end.is_set()
        engine.may_end.set()
        await client.receive_a(Tokens)
        assert (await other.receive_a(Failed)).request_id == 2  # it came too late
        with anyio.fail_after(PATIENCE_S):
            await closed.wait()


# --- clients that go ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["block", "cancel", "close", "unread"])
async def test_slots_are_free_a_step_after_their_clients_have_gone(how: str) -> None:
    async with running_daemon(load=SteppedEngine) as daemon:
        engine = daemon.engine_as(SteppedEngine)
        async with raw_client(daemon) as client, connect(daemon.path) as polite:
            async with AsyncExitStack() as stack:
                if how == "block":
                    for _ in range(4):
                        await stack.enter_async_context(polite.generate("x", shift=True))
                else:
                    await client.send(*(Generate(i, "x", shift=True) for i in range(4)))
                await engine.at_step()
                await daemon.until(lambda: daemon.runner.figures.n_requests == 4)
                await engine.step(5)
                if how != "unread":  # unread answers make a reset of our closing
                    await daemon.until(lambda: daemon.runner.figures.n_generated_tokens >= 10)
            if how == "cancel":
                await client.send(*(Cancel(i) for i in range(4)))
                await client.send(GetStatus(9))
                await client.receive_a(Status)
        await daemon.until(lambda: daemon.server.n_connections == 0)
        n_steps = daemon.runner.figures.n_steps
        engine.let_go()
        await daemon.until(lambda: not daemon.runner.batcher or not daemon.runner.batcher.seq_ids)
        assert daemon.runner.figures.n_steps == n_steps + 1
        engine.let_all_go()
        await daemon.has_all_slots()


async def test_a_client_that_goes_from_the_queue_leaves_its_place_at_once() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1, max_queue=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", max_tokens=1))
        await engine.at_step()
        async with raw_client(daemon) as other:
            await other.send(Generate(1, "y"))
            await other.receive_a(Accepted)
        await daemon.until(lambda: daemon.server.n_connections == 1)
        await client.send(Generate(2, "z", max_tokens=1))
        await client.receive_a(Accepted, 2)
        engine.let_all_go()
        await client.receive_a(Finished, 2)
        await daemon.has_all_slots()


async def test_a_client_that_goes_disturbs_no_neighbour() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "steady", max_tokens=300, shift=True, temperature=0.0))
        text = (await client.receive_a(Delta)).text
        for _ in range(10):
            async with connect(daemon.path) as other, AsyncExitStack() as stack:
                await started(other, stack, 2)
        while not isinstance(message := await client.receive(), Finished):
            text += message.text if isinstance(message, Delta) else ""
        await client.send(Generate(2, "steady", max_tokens=300, shift=True, temperature=0.0))
        again = ""
        while not isinstance(message := await client.receive(), Finished):
            again += message.text if isinstance(message, Delta) else ""
        assert again == text
