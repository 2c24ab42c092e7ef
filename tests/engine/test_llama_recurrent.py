"""Models that keep a state of all they have seen: it goes on, is copied, and comes back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    KVCopy,
    KVRemove,
    Span,
)
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.errors import DecodeAborted
from tests.engine.driving import apply
from tests.engine.llama_builders import llama_config
from tests.engine.rows import Row, context_of, feed, loaded_llama
from tests.engine.tiny_models import N_VOCAB, lfm2, mamba

pytestmark = pytest.mark.llama

TOKENS = tuple(int(token) for token in np.random.default_rng(3).integers(3, N_VOCAB, 200))
TAIL = TOKENS[::-1][:20]


@pytest.fixture(
    scope="module",
    params=[(mamba, "split"), (lfm2, "split"), (lfm2, "unified")],
    ids=["recurrent", "hybrid", "hybrid in one pool"],
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaEngine]:
    write: Callable[[Path], str]
    write, kv = request.param
    path = write(tmp_path_factory.mktemp("models"))
    with loaded_llama(llama_config(model=path, n_slots=3, kv=kv, flash_attn="off")) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _empty(engine: LlamaEngine) -> None:
    apply(engine, *(KVRemove(slot_id, 0) for slot_id in range(3)))


def cold(engine: LlamaEngine, tokens: tuple[int, ...]) -> Row:
    apply(engine, KVRemove(2, 0))
    row = feed(engine, 2, tokens)
    apply(engine, KVRemove(2, 0))
    return row


def assert_equal(row: Row, expected: Row) -> None:
    np.testing.assert_allclose(row, expected, atol=1e-3)


def test_it_neither_goes_back_nor_shifts(engine: LlamaEngine) -> None:
    limits = engine.limits
    assert (limits.can_rewind, limits.can_shift, limits.window) == (False, False, 0)


def test_an_extension_equals_a_cold_run(engine: LlamaEngine) -> None:
    feed(engine, 0, TOKENS)
    assert_equal(feed(engine, 0, TAIL, len(TOKENS)), cold(engine, TOKENS + TAIL))


@pytest.mark.parametrize("at", [1, 30, 64, 150])
def test_what_follows_a_restore_equals_a_cold_run(engine: LlamaEngine, at: int) -> None:
    feed(engine, 0, TOKENS[:at])
    apply(engine, CheckpointSave(1, 0))
    feed(engine, 0, TOKENS[at:], at)
    apply(engine, CheckpointRestore(1, 0, at), CheckpointDrop(1))
    assert_equal(feed(engine, 0, TAIL, at), cold(engine, TOKENS[:at] + TAIL))


def test_a_copy_goes_on_as_its_source_would(engine: LlamaEngine) -> None:
    feed(engine, 0, TOKENS)
    apply(engine, KVCopy(0, 1, len(TOKENS)))
    copied = feed(engine, 1, TAIL, len(TOKENS))
    assert_equal(copied, cold(engine, TOKENS + TAIL))
    assert_equal(feed(engine, 0, TAIL[:5], len(TOKENS)), cold(engine, TOKENS + TAIL[:5]))


def test_a_copy_can_be_put_back_to_a_checkpoint_of_its_source(engine: LlamaEngine) -> None:
    feed(engine, 0, TOKENS[:70])
    apply(engine, CheckpointSave(1, 0))
    feed(engine, 0, TOKENS[70:], 70)
    apply(engine, KVCopy(0, 1, 90), CheckpointRestore(1, 1, 70), CheckpointDrop(1))
    assert_equal(feed(engine, 1, TAIL, 70), cold(engine, TOKENS[:70] + TAIL))
    assert_equal(feed(engine, 0, TAIL, 200), cold(engine, TOKENS + TAIL))


def test_a_copy_outlives_its_source(engine: LlamaEngine) -> None:
    feed(engine, 0, TOKENS)
    apply(engine, KVCopy(0, 1, len(TOKENS)), KVRemove(0, 0))
    feed(engine, 0, TAIL)
    assert_equal(feed(engine, 1, TAIL, len(TOKENS)), cold(engine, TOKENS + TAIL))


def test_a_copy_can_be_saved_at_once(engine: LlamaEngine) -> None:
    feed(engine, 0, TOKENS)
    apply(engine, KVCopy(0, 1, len(TOKENS)), CheckpointSave(1, 1), KVRemove(0, 0))
    feed(engine, 1, TOKENS[:9], len(TOKENS))
    apply(engine, CheckpointRestore(1, 1, len(TOKENS)), CheckpointDrop(1))
    assert_equal(feed(engine, 1, TAIL, len(TOKENS)), cold(engine, TOKENS + TAIL))


def test_a_decode_that_was_stopped_leaves_its_slots_empty_and_others_alone(
    engine: LlamaEngine,
) -> None:
    feed(engine, 0, TOKENS)
    feed(engine, 1, TOKENS)
    engine.set_abort(True)
    with pytest.raises(DecodeAborted) as caught:
        context_of(engine).decode([Span(0, 0, len(TOKENS), TAIL, True)])
    engine.set_abort(False)
    assert caught.value.n_stored == (None,)
    assert_equal(feed(engine, 0, TAIL), cold(engine, TAIL))
    assert_equal(feed(engine, 1, TAIL, len(TOKENS)), cold(engine, TOKENS + TAIL))


def test_without_attention_a_checkpoint_goes_into_an_empty_slot(engine: LlamaEngine) -> None:
    if engine.limits.has_attention:
        pytest.skip("the cells of attention are not in a checkpoint")
    feed(engine, 0, TOKENS[:70])
    apply(engine, CheckpointSave(1, 0), KVRemove(0, 0))
    feed(engine, 1, TAIL)
    apply(engine, CheckpointRestore(1, 0, 70), CheckpointDrop(1))
    expected = cold(engine, TOKENS[:70] + TAIL)
    assert_equal(feed(engine, 0, TAIL, 70), expected)


def test_a_checkpoint_is_as_large_as_the_state(engine: LlamaEngine) -> None:
    feed(engine, 0, TOKENS[:10])
    apply(engine, CheckpointSave(1, 0))
    feed(engine, 0, TOKENS[10:100], 10)
    apply(engine, CheckpointSave(2, 0))
    assert engine.checkpoint_bytes(1) == engine.checkpoint_bytes(2) > 0
    apply(engine, CheckpointDrop(1), CheckpointDrop(2))
