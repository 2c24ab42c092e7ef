"""Forks: a copy goes on as its source would, whatever else is edited in the same step."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import Edit, KVCopy, KVRemove, KVShift
from runnerd.engine.llama.engine import LlamaEngine
from tests.engine.driving import apply
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import Row, context_of, feed, loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

TOKENS = tuple(int(token) for token in np.random.default_rng(9).integers(100, 40000, 60))
TAIL = TOKENS[::-1][:8]
N = len(TOKENS)


@pytest.fixture(scope="module", params=["split", "unified"])
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    kv: Literal["split", "unified"] = request.param
    with loaded_llama(llama_config(kv=kv)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _filled(engine: LlamaEngine) -> None:
    apply(engine, *(KVRemove(slot_id, 0) for slot_id in range(4)))
    feed(engine, 0, TOKENS)


def cold(engine: LlamaEngine, tokens: tuple[int, ...]) -> Row:
    apply(engine, KVRemove(3, 0))
    return feed(engine, 3, tokens)


def assert_same(engine: LlamaEngine, row: Row, expected: Row) -> None:
    if engine.limits.is_unified:  # the order of the cells decides the last bits
        np.testing.assert_allclose(row, expected, atol=1.0)
    else:
        assert np.array_equal(row, expected)


def assert_goes_on(engine: LlamaEngine, slot_id: int, held: tuple[int, ...]) -> None:
    """Check where a slot stands, and what comes out of it."""
    assert context_of(engine).cells.n_past[slot_id] == len(held)
    assert_same(engine, feed(engine, slot_id, TAIL, len(held)), cold(engine, held + TAIL))


@pytest.mark.parametrize("n_pos", [1, 33, N])
def test_a_copy_and_its_source_both_go_on(engine: LlamaEngine, n_pos: int) -> None:
    apply(engine, KVCopy(0, 1, n_pos))
    assert_goes_on(engine, 1, TOKENS[:n_pos])
    assert_goes_on(engine, 0, TOKENS)


@pytest.mark.parametrize(
    ("edits", "slot_id", "n_held"),
    [
        ((KVCopy(0, 1, 40), KVRemove(0, 0)), 1, 40),
        ((KVCopy(0, 1, 40), KVRemove(0, 10)), 1, 40),
        ((KVCopy(0, 1, 40), KVCopy(1, 2, 20)), 2, 20),
        ((KVCopy(0, 1, 40), KVCopy(1, 2, 20), KVRemove(1, 0)), 2, 20),
        ((KVCopy(0, 1, 40), KVRemove(0, 0), KVCopy(1, 0, 30)), 0, 30),
        ((KVRemove(0, 50), KVCopy(0, 1, 50)), 1, 50),
        ((KVCopy(0, 1, 40), KVRemove(1, 0), KVCopy(0, 1, 25)), 1, 25),
        ((KVCopy(0, 1, 40), KVRemove(1, 12)), 1, 12),
    ],
    ids=[
        "the source is emptied",
        "the source is cut",
        "a copy is copied",
        "a copy is copied and emptied",
        "there and back",
        "the source was cut before",
        "a copy is replaced",
        "the copy is cut",
    ],
)
def test_edits_of_one_step_have_their_effect_in_order(
    engine: LlamaEngine, edits: tuple[Edit, ...], slot_id: int, n_held: int
) -> None:
    apply(engine, *edits)
    assert_goes_on(engine, slot_id, TOKENS[:n_held])


def test_what_is_fed_to_the_source_after_a_copy_does_not_reach_the_copy(
    engine: LlamaEngine,
) -> None:
    apply(engine, KVCopy(0, 1, 40), KVRemove(0, 0))
    feed(engine, 0, TAIL)
    assert_goes_on(engine, 1, TOKENS[:40])


def test_a_slot_that_was_shifted_is_copied_as_it_is(engine: LlamaEngine) -> None:
    shift = (KVRemove(0, 1, 11), KVShift(0, 11, None, -10))
    apply(engine, *shift, KVCopy(0, 1, N - 10))
    assert_same(engine, feed(engine, 1, TAIL, N - 10), feed(engine, 0, TAIL, N - 10))


def test_nothing_is_copied_of_nothing(engine: LlamaEngine) -> None:
    apply(engine, KVCopy(0, 1, 0))
    assert_goes_on(engine, 1, ())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (KVCopy(0, 4, 8), "slot 4 of 4"),
        (KVCopy(-1, 1, 8), "slot -1 of 4"),
        (KVCopy(0, 1, N + 1), "61 positions, slot 0 has 60"),
        (KVCopy(1, 0, 0), "slot 0 is not empty"),
        (KVCopy(0, 0, 8), "slot 0 is not empty"),
    ],
)
def test_a_copy_that_makes_no_sense_never_reaches_llama_cpp(
    engine: LlamaEngine, edit: KVCopy, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        apply(engine, edit)
