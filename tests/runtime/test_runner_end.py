"""How a runner ends, and what becomes of the requests of clients that go."""

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio import to_thread

from runnerd.client import connect
from runnerd.config import Config
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.errors import LoadCancelled
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
from tests.daemon import PATIENCE_S, Daemon, raw_client, running_daemon, started
from tests.engines import GatedLoad, SlowTokenizer, SteppedEngine

pytestmark = pytest.mark.anyio


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
