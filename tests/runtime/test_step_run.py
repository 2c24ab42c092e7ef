"""A step on the engine's thread, and the one that the thread begins by itself."""

import gc
import threading
import weakref
from collections.abc import AsyncIterator

import anyio
import pytest

from runnerd.core.batch import Batch, BatchKind, SamplerOpen, Span, Step
from runnerd.core.sampling import Sampling
from runnerd.engine.base import Decoded, EngineConfig
from runnerd.engine.reference.engine import ReferenceEngine
from runnerd.engine.reference.options import parse_options
from runnerd.engine_thread import EngineThread
from runnerd.errors import EngineBroken
from runnerd.step_run import StepRun

pytestmark = pytest.mark.anyio

PATIENCE_S = 10.0
GREEDY = Sampling(temperature=0.0)


class Counting(ReferenceEngine):
    """Tells when it has run two passes."""

    def __init__(self, options: str) -> None:
        config = EngineConfig(options, "reference", n_slots=1, n_ctx=64)
        super().__init__(config, parse_options(options), lambda _phase, _fraction: True)
        self.n_decodes = 0
        self.has_run_two = threading.Event()

    def decode(self, batch: Batch) -> Decoded:
        decoded = super().decode(batch)
        self.n_decodes += 1
        if self.n_decodes == 2:
            self.has_run_two.set()
        return decoded


@pytest.fixture
async def thread() -> AsyncIterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


def first_step() -> Step:
    spans = (Span(0, 0, 0, (7,), wants_logits=True),)
    return Step(1, (SamplerOpen(0, GREEDY, ()),), (Batch(BatchKind.TOKENS, spans),), ())


def run_of(engine: ReferenceEngine, *, may_lead: bool) -> StepRun:
    run = StepRun(engine, first_step())
    run.next_done = anyio.Event() if may_lead else None
    return run


async def test_the_successor_has_run_before_anybody_has_heard_of_the_step(
    thread: EngineThread,
) -> None:
    engine = Counting("layers=0")
    run = run_of(engine, may_lead=True)
    thread.begin(run)
    assert engine.has_run_two.wait(PATIENCE_S)  # and the event loop stands still
    with anyio.fail_after(PATIENCE_S):
        (token,) = (await run.wait()).sampled
        assert run.following is not None
        assert len((await run.following.wait()).sampled) == 1
    (span,) = run.following.step.batches[0].spans
    assert (run.following.step.number, span.pos, span.inputs) == (2, 1, (token,))
    assert run.following.following is None
    assert run.ended_at <= run.following.ended_at - run.following.took_s


async def test_what_may_not_lead_does_not(thread: EngineThread) -> None:
    engine = Counting("layers=0")
    run = run_of(engine, may_lead=False)
    thread.begin(run)
    await run.wait()
    await thread.call(lambda: None)
    assert (run.following, engine.n_decodes) == (None, 1)


async def test_there_is_no_successor_behind_an_end(thread: EngineThread) -> None:
    engine = Counting("layers=1,end_bias=100")
    run = run_of(engine, may_lead=True)
    thread.begin(run)
    await run.wait()
    assert run.following is None


async def test_an_error_of_the_successor_is_its_own(thread: EngineThread) -> None:
    engine = Counting("layers=0,broken_at=2")
    run = run_of(engine, may_lead=True)
    thread.begin(run)
    assert len((await run.wait()).sampled) == 1
    assert run.following is not None
    with pytest.raises(EngineBroken):
        await run.following.wait()


async def test_nothing_is_left_of_runs_that_are_over(thread: EngineThread) -> None:
    """Each knows the next: what is left of one is left of all behind it."""
    run = run_of(Counting("layers=0"), may_lead=True)
    thread.begin(run)
    await run.wait()
    following = run.following
    assert following is not None
    await following.wait()
    await thread.call(lambda: None)
    gone = weakref.ref(run), weakref.ref(following)
    gc.disable()
    try:
        del run, following
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()
