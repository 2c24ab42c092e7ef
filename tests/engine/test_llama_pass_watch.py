"""A pass that is stopped because its threads have no cores, and goes on with fewer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from threading import Event
from threading import enumerate as enumerate_threads
from time import perf_counter

import numpy as np
import pytest
from structlog.testing import capture_logs

pytest.importorskip("llama_cpp")

from runnerd.core.batch import (
    Batch,
    BatchKind,
    KVRemove,
    SamplerOpen,
    Sampling,
    Span,
    Step,
    StepResult,
)
from runnerd.engine.base import run_step
from runnerd.engine.llama.abort import AbortSwitch
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.pass_watch import PassWatch
from runnerd.engine.thread_governor import ThreadGovernor
from runnerd.errors import DecodeAborted
from tests.engine.driving import apply
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import feed, loaded_llama

N_UBATCH = 16
TOKENS = tuple(int(token) for token in np.random.default_rng(7).integers(100, 40000, 400))


class Switch(AbortSwitch):
    """A switch of no context, that tells when it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used = Event()

    def give_way(self, wanted: bool) -> None:
        super().give_way(wanted)
        if wanted:
            self.used.set()

    @property
    def stops(self) -> bool:
        return self._text.value != b""


def test_a_pass_that_is_lost_is_stopped_and_the_next_one_is_not() -> None:
    switch = Switch()
    watch = PassWatch(lambda wall_s, *_: wall_s > 0)
    running = watch.begin(switch)
    assert switch.used.wait(10)
    watch.end()
    assert running.was_stopped
    assert not switch.stops


def test_a_pass_is_asked_about_again_and_again_until_it_is_lost() -> None:
    seen: list[float] = []

    def is_lost(wall_s: float, _cpu_s: float, _now: float) -> bool:
        seen.append(wall_s)
        return len(seen) == 3

    switch = Switch()
    watch = PassWatch(is_lost)
    watch.begin(switch)
    assert switch.used.wait(10)
    watch.end()
    assert len(seen) == 3
    assert seen == sorted(seen)


def test_passes_are_looked_at_after_a_rest_too() -> None:
    switches = Switch(), Switch()
    watch = PassWatch(lambda *_: True)
    for switch in switches:
        watch.begin(switch)
        assert switch.used.wait(10)
        watch.end()
        assert not switch.stops


def test_a_pass_without_a_switch_is_left_to_its_end() -> None:
    asked = Event()

    def is_lost(*_: float) -> bool:
        asked.set()
        return True

    watch = PassWatch(is_lost)
    running = watch.begin(None)
    assert not asked.wait(0.2)
    watch.end()
    assert not running.was_stopped


def test_a_watch_that_is_closed_leaves_no_thread() -> None:
    before = set(enumerate_threads())
    switch = Switch()
    watch = PassWatch(lambda *_: True)
    watch.begin(switch)
    assert switch.used.wait(10)
    (thread,) = set(enumerate_threads()) - before
    watch.end()
    watch.close()
    thread.join(10)
    assert not thread.is_alive()


def test_the_time_that_the_process_was_stopped_for_is_none_of_the_pass() -> None:
    asked: list[float] = []

    def is_lost(wall_s: float, _cpu_s: float, _now: float) -> bool:
        asked.append(wall_s)
        return False

    watch = PassWatch(is_lost)
    watch.begin(Switch())
    watch._look_once(60.0)
    watch.end()
    assert min(asked) < -50
    watch.close()


def test_a_demand_to_stop_outlives_a_pass_that_gave_way() -> None:
    switch = Switch()
    switch.give_way(True)
    switch.set(True)
    switch.give_way(False)
    assert switch.stops
    switch.set(False)
    assert not switch.stops


# --- a model -------------------------------------------------------------------------------


@dataclass
class Patience:
    """How long a pass with two threads goes on until it is taken for lost."""

    seconds: float = 0.0


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    given = Patience()

    def should_stop(self: ThreadGovernor, wall_s: float, *_: float) -> bool:
        return self.n_threads > 1 and wall_s >= given.seconds

    monkeypatch.setattr("runnerd.engine.llama.pass_watch.LOOK_S", 0.01)
    monkeypatch.setattr(ThreadGovernor, "should_stop", should_stop)
    return given


@pytest.fixture
def engine(patience: Patience) -> Iterator[LlamaEngine]:
    if MODEL is None:
        pytest.skip("the test model is not installed")
    config = llama_config(n_ubatch=N_UBATCH, n_batch=512, n_ctx=512)
    with loaded_llama(replace(config, n_threads=2, n_embed=64)) as engine:
        yield engine


def run(engine: LlamaEngine, *spans: Span) -> StepResult:
    return run_step(engine, Step(1, (), (Batch(BatchKind.TOKENS, spans),)))


@pytest.mark.llama
def test_a_step_that_is_lost_keeps_what_it_stored_and_its_rest_gives_the_same(
    engine: LlamaEngine, patience: Patience
) -> None:
    patience.seconds = inf
    began_at = perf_counter()
    fresh = feed(engine, 0, TOKENS)
    whole_s = perf_counter() - began_at
    feed(engine, 1, TOKENS[:20])
    apply(engine, SamplerOpen(1, Sampling(temperature=0.0), ()))
    with capture_logs() as logs:
        for divisor in (2, 4, 8, 16):  # alone on the machine by now, it may take less
            apply(engine, KVRemove(0, 0), KVRemove(1, 20))
            patience.seconds = whole_s / divisor
            result = run(engine, Span(0, 0, 0, TOKENS), Span(1, 1, 20, (5,), wants_logits=True))
            if result.is_aborted:
                break
    assert result.is_aborted
    assert result.sampled == ()
    assert result.n_stored is not None
    n_stored, n_stored_of_other = result.n_stored
    assert n_stored is not None
    assert 0 < n_stored < len(TOKENS)
    assert n_stored_of_other == 1  # llama.cpp takes it first
    assert [log["n_threads"] for log in logs if log["event"] == "threads.changed"] == [1]
    rest = feed(engine, 0, TOKENS[n_stored:], n_stored)
    assert np.allclose(rest, fresh, atol=1e-3)


@pytest.mark.llama
def test_embeddings_that_lose_their_cores_come_all_the_same(engine: LlamaEngine) -> None:
    inputs = [TOKENS[:34], TOKENS[100:130]]
    with capture_logs() as logs:
        vectors = engine.embed(inputs, "mean")
    assert [log["n_threads"] for log in logs if log["event"] == "threads.changed"] == [1]
    assert np.array_equal(vectors, engine.embed(inputs, "mean"))


@pytest.mark.llama
def test_embeddings_that_are_not_wanted_any_more_do_not_come(engine: LlamaEngine) -> None:
    engine.set_abort(True)
    with pytest.raises(DecodeAborted):
        engine.embed([TOKENS[:60]], "mean")
    engine.set_abort(False)
    assert len(engine.embed([TOKENS[:60]], "mean")) == 1
