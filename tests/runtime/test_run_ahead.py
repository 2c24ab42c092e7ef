"""What the decode loop makes of steps that the engine begins by itself."""

import threading
from collections.abc import Callable

import anyio
import pytest

from runnerd.config import Config
from runnerd.core.batch import Batch, Sampling
from runnerd.core.emission import Emission
from runnerd.core.prompt import TextPart
from runnerd.core.sequence import Options
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.runner import Runner
from tests.daemon import PATIENCE_S, running_daemon
from tests.engines import SteppedEngine

pytestmark = pytest.mark.anyio

MODEL = "layers=0,step_ms=3"  # long enough that something is done meanwhile
ENDLESS = Options()


class AheadEngine(SteppedEngine):
    """Counts the tokens that its own thread has looked at."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, progress)
        self.n_looked_at = 0

    def is_end(self, token: int) -> bool:
        self.n_looked_at += threading.current_thread() is not threading.main_thread()
        return super().is_end(token)

    def run_ahead(self) -> Batch:
        """Let the decode at the gate run, and its successor begin: the event loop stands still."""
        self.let_go()
        assert self._arrived.acquire(timeout=PATIENCE_S)
        return self.batches[-1]


def engine_of(runner: Runner) -> AheadEngine:
    assert isinstance(runner.engine, AheadEngine)
    return runner.engine


class Request:
    """One sequence, and what it has said."""

    def __init__(self, runner: Runner, options: Options = ENDLESS) -> None:
        self.text = ""
        self.n_tokens = 0
        self.endings: list[object] = []
        self.has_ended = anyio.Event()
        prompt = engine_of(runner).expand([TextPart("x")])
        self.seq_id = runner.submit(prompt, options, self._hear)

    def _hear(self, emission: Emission) -> None:
        assert not self.endings, "spoke after its end"
        self.text += emission.text
        self.n_tokens += emission.token is not None
        if emission.ending is not None:
            self.endings.append(emission.ending)
            self.has_ended.set()


async def generating(runner: Runner, *requests: Request) -> AheadEngine:
    """Wait until a step in which all of them generate stands at the gate."""
    engine = engine_of(runner)
    with anyio.fail_after(PATIENCE_S):
        await engine.at_step()
        while not all(request.n_tokens for request in requests):
            await engine.step()
    return engine


async def next_seq_ids(engine: AheadEngine) -> set[int]:
    """Return who is in the step after the one at the gate."""
    with anyio.fail_after(PATIENCE_S):
        await engine.step()
    return {span.seq_id for span in engine.batches[-1].spans}


# --- who comes and goes ---------------------------------------------------------------------


async def test_a_newcomer_is_in_the_next_step_if_that_has_not_begun() -> None:
    async with running_daemon(MODEL, load=AheadEngine) as daemon:
        first = Request(daemon.runner)
        engine = await generating(daemon.runner, first)
        second = Request(daemon.runner)
        assert await next_seq_ids(engine) == {first.seq_id, second.seq_id}


async def test_a_newcomer_waits_for_no_more_than_the_step_that_has_begun() -> None:
    async with running_daemon(MODEL, load=AheadEngine) as daemon:
        first = Request(daemon.runner)
        engine = await generating(daemon.runner, first)
        engine.run_ahead()
        second = Request(daemon.runner)
        assert await next_seq_ids(engine) == {first.seq_id, second.seq_id}


async def test_who_is_cancelled_when_the_next_step_has_begun_has_all_of_its_tokens() -> None:
    async with running_daemon(MODEL, load=AheadEngine) as daemon:
        first, second = Request(daemon.runner), Request(daemon.runner)
        engine = await generating(daemon.runner, first, second)
        n_before = first.n_tokens
        engine.run_ahead()
        daemon.runner.end(first.seq_id, "cancelled")
        assert first.endings == []
        assert await next_seq_ids(engine) == {second.seq_id}
        assert (first.endings, first.n_tokens) == (["cancelled"], n_before + 2)


async def test_a_step_that_the_engine_has_begun_by_itself_is_watched() -> None:
    async with running_daemon(MODEL, load=AheadEngine, step_timeout_s=0.05) as daemon:
        request, watches = Request(daemon.runner), daemon.runner.watches
        engine = await generating(daemon.runner, request)
        n_before = request.n_tokens
        engine.run_ahead()
        await daemon.until(lambda: request.n_tokens > n_before and watches.stalled == "step")
        engine.let_all_go()
        await daemon.until(lambda: not watches.stalled)


# --- when all is over -----------------------------------------------------------------------


async def test_a_token_is_told_though_the_next_step_has_broken_the_engine() -> None:
    async with running_daemon(MODEL, load=AheadEngine) as daemon:
        request = Request(daemon.runner)
        engine = await generating(daemon.runner, request)
        n_before = request.n_tokens
        engine.faults.broken_at(len(engine.batches) + 1)
        engine.run_ahead()
        engine.let_all_go()
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert request.n_tokens == n_before + 1
        assert [str(ending) for ending in request.endings] == [str(daemon.error)]


async def check_outlasts(runner: Runner, end: Callable[[], None], has_ended: anyio.Event) -> None:
    """Assert that a runner does not end before the step that the engine has begun."""
    engine = await generating(runner, Request(runner))
    engine.run_ahead()
    end()
    with anyio.fail_after(PATIENCE_S, shield=True):
        await anyio.wait_all_tasks_blocked()
        assert not has_ended.is_set()
        engine.let_all_go()
        await has_ended.wait()


async def test_a_runner_that_is_given_up_ends_behind_the_step_that_has_begun() -> None:
    async with running_daemon(MODEL, load=AheadEngine) as daemon:
        runner = daemon.runner
        await check_outlasts(runner, lambda: runner.give_up("no reason"), daemon.has_ended)
        assert daemon.error is None


async def test_a_runner_that_is_cancelled_ends_behind_the_step_that_has_begun() -> None:
    runner, has_ended = Runner(Config(EngineConfig(MODEL, "reference")), AheadEngine), anyio.Event()

    async def run() -> None:
        try:
            await runner.run()
        finally:
            has_ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        while runner.state != "ready":
            await runner.changed.wait()
        await check_outlasts(runner, tasks.cancel_scope.cancel, has_ended)
    await runner.close()


# --- what is drawn --------------------------------------------------------------------------


async def drawn(model: str, *stops: str) -> tuple[list[str], int]:
    """Return what seeds give, and how many tokens the engine's thread has looked at."""
    async with running_daemon(f"{model},end_bias=-100,step_ms=3", load=AheadEngine) as daemon:
        requests = [
            Request(
                daemon.runner,
                Options(Sampling(temperature=1.0, seed=seed, repeat_penalty=1.3), 30, stops),
            )
            for seed in (7, 8)
        ]
        engine_of(daemon.runner).let_all_go()
        with anyio.fail_after(PATIENCE_S):
            for request in requests:
                await request.has_ended.wait()
        return [request.text for request in requests], engine_of(daemon.runner).n_looked_at


@pytest.mark.parametrize("model", ["layers=1", "layers=2,window=8", "layers=2,recurrent=1"])
async def test_a_seed_gives_the_same_whoever_begins_the_steps(model: str) -> None:
    texts, n_looked_at = await drawn(model)
    assert n_looked_at > 2 * 10
    assert await drawn(model, "where text may end it, the engine waits") == (texts, 0)
