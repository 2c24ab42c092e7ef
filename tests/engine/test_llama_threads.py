"""How passes share the cores, with an encoder and with other processes."""

from collections.abc import Iterator
from hashlib import sha256
from time import monotonic

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import Span
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.spare_core import SpareCoreProbe
from runnerd.engine.llama.threads import Team, ThreadShares, share_threads
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import context_of, feed, loaded_llama

BLOCK = bytes(2**18)


@pytest.mark.parametrize(
    ("n_threads", "encode", "beside"),
    [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 2), (7, 3, 4), (16, 8, 8)],
)
def test_encoder_and_passes_together_want_no_more_cores_than_there_are(
    n_threads: int, encode: int, beside: int
) -> None:
    assert share_threads(n_threads) == ThreadShares(encode, beside)
    assert encode + beside <= max(2, n_threads)


def work_alone(seconds: float) -> None:
    """Keep one thread busy, as if the others of a team had no core."""
    until = monotonic() + seconds
    while monotonic() < until:
        sha256(BLOCK)


def n_after_lonely_work(team: Team) -> int:
    """Return the threads of the next pass after one that had a single core for long."""
    with team.passing("decode", 8):
        work_alone(0.1)
    with team.passing("decode", 8) as n_threads:
        return n_threads


def test_after_a_pass_without_a_core_for_each_thread_there_are_fewer() -> None:
    assert n_after_lonely_work(Team(2, adapts=True)) == 1


def test_a_fixed_number_of_threads_stays() -> None:
    assert n_after_lonely_work(Team(2, adapts=False)) == 2


def test_a_single_thread_stays() -> None:
    assert n_after_lonely_work(Team(1, adapts=True)) == 1


def test_a_pass_that_fails_tells_nothing() -> None:
    team = Team(2, adapts=True)
    with pytest.raises(ZeroDivisionError), team.passing("decode", 8):
        work_alone(0.1)
        raise ZeroDivisionError
    with team.passing("decode", 8) as n_threads:
        assert n_threads == 2


def test_a_probe_measures_the_share_of_a_core_once() -> None:
    probe = SpareCoreProbe()
    assert probe.take() is None
    probe.start()
    share, until = None, monotonic() + 5
    while share is None and monotonic() < until:
        work_alone(0.005)
        share = probe.take()
    assert share is not None
    assert 0 < share < 1.05
    assert probe.take() is None


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    with loaded_llama(llama_config(n_slots=2, n_ctx=256)) as engine:
        yield engine


@pytest.mark.llama
@pytest.mark.skipif(MODEL is None, reason="the test model is not installed")
def test_logits_are_the_same_to_the_bit_with_another_number_of_threads(
    engine: LlamaEngine,
) -> None:
    context = context_of(engine)
    tokens = [11, 300, 42, 7, 1000] * 4
    seen = []
    for n_threads in (1, 2):
        context.use_threads(n_threads)
        context.cells.clear()
        rows = [feed(engine, slot, tokens[slot:]) for slot in range(2)]
        spans = [Span(slot, slot, len(tokens) - slot, (5,), True) for slot in range(2)]
        seen.append(np.concatenate([*rows, *context.decode(spans)]))
    assert np.array_equal(seen[0], seen[1])
