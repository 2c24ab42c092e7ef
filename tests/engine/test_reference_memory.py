"""Shared cells, windows that forget, recurrent states and checkpoints, to the last bit."""

from typing import Literal

import pytest

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    Edit,
    KVCopy,
    KVRemove,
    KVShift,
    Span,
)
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions
from runnerd.errors import ConfigError, NoKVSlot
from tests.engine.reference_builders import (
    feed,
    feed_tokens,
    open_greedy,
    reference,
    special,
    token_batch,
)

WINDOW = ReferenceOptions(dim=16, heads=2, window=8)
RECURRENT = ReferenceOptions(layers=2, dim=16, heads=2, recurrent=True)
TEXT = b"the cat sat on a mat, and there it stayed"


def cold(options: ReferenceOptions, text: bytes) -> list[float]:
    """Return the logits after a text on an engine of its own."""
    with reference(options) as engine:
        open_greedy(engine, 0)
        return feed_tokens(engine, text, 0)


# --- limits --------------------------------------------------------------------------------


def test_fewer_cells_than_a_split_cache_takes_are_refused() -> None:
    with pytest.raises(ConfigError, match="100 cells are less than 4 slots of 64: kv is split"):
        with reference(n_ctx=64, n_cells=100, kv="split"):
            pass


@pytest.mark.parametrize(
    ("kv", "n_cells", "is_unified"),
    [("auto", 0, False), ("auto", 100, True), ("unified", 0, True), ("split", 0, False)],
)
def test_the_cache_is_unified_on_demand_or_where_cells_are_short(
    kv: Literal["auto", "split", "unified"], n_cells: int, is_unified: bool
) -> None:
    with reference(n_ctx=64, n_cells=n_cells, kv=kv) as engine:
        assert engine.limits.is_unified == is_unified


@pytest.mark.parametrize(
    ("options", "swa_full", "expected"),
    [
        (ReferenceOptions(), False, (0, True, True)),
        (WINDOW, False, (8, False, True)),
        (WINDOW, True, (0, True, True)),
        (ReferenceOptions(window=8, layers=1), False, (0, True, True)),
        (ReferenceOptions(window=8, shift=False), True, (0, False, True)),
        (RECURRENT, False, (0, False, False)),
    ],
    ids=["plain", "window", "kept whole", "no sliding layer", "no shift", "recurrent"],
)
def test_limits_tell_what_the_layers_can(
    options: ReferenceOptions, swa_full: bool, expected: tuple[int, bool, bool]
) -> None:
    with reference(options, swa_full=swa_full) as engine:
        limits = engine.limits
    assert (limits.window, limits.can_shift, limits.can_rewind) == expected


def test_a_recurrent_layer_takes_a_layer() -> None:
    with pytest.raises(ConfigError, match=r"recurrent=1 takes a layer, there are layers=0"):
        ReferenceOptions(layers=0, recurrent=True)


# --- shared cells --------------------------------------------------------------------------


def used(engine: ReferenceEngine) -> int:
    """Return how many cells are in use, by how many more rows find room."""
    limits = engine.limits
    for n_rows in range(limits.n_cells, -1, -1):
        try:
            if n_rows:
                engine.decode(token_batch(Span(0, 3, 0, (65,) * n_rows)))
        except NoKVSlot:
            continue
        engine.apply([KVRemove(3, 0)])
        return limits.n_cells - n_rows
    raise AssertionError


def test_a_copy_in_a_unified_cache_takes_no_cells() -> None:
    with reference(n_ctx=40, n_cells=40) as engine:
        feed_tokens_unsampled(engine, TEXT[:20])
        engine.apply([KVCopy(0, 1, 20), KVCopy(1, 2, 10)])
        assert used(engine) == 20
        engine.apply([KVRemove(0, 5)])
        assert used(engine) == 20
        engine.apply([KVRemove(1, 15)])
        assert used(engine) == 15
        engine.apply([KVRemove(1, 0)])
        assert used(engine) == 10
        engine.apply([KVRemove(2, 0), KVRemove(0, 0)])
        assert used(engine) == 0


def test_a_copy_in_a_split_cache_leaves_every_slot_its_own_cells() -> None:
    with reference(n_slots=2, n_ctx=20, kv="split") as engine:
        open_greedy(engine, 0, 1)
        feed_tokens(engine, TEXT[:18], 0)
        engine.apply([KVCopy(0, 1, 18)])
        first = feed_tokens(engine, b"ab", 18)
        assert feed_tokens(engine, b"ab", 18, slot_id=1) == first


def test_cells_that_two_slots_own_are_not_shifted() -> None:
    with reference(kv="unified") as engine:
        feed_tokens_unsampled(engine, TEXT[:20])
        engine.apply([KVCopy(0, 1, 10), KVShift(0, 12, None, 5)])
        with pytest.raises(AssertionError, match=r"slot 0: 6 cells to shift are others' as well"):
            engine.apply([KVRemove(0, 2, 4), KVShift(0, 4, None, -2)])


def test_copies_in_a_split_cache_are_shifted_one_by_one() -> None:
    with reference(kv="split") as engine:
        open_greedy(engine, 0, 1)
        feed_tokens(engine, TEXT[:20], 0)
        engine.apply([KVCopy(0, 1, 20), KVRemove(0, 2, 4), KVShift(0, 4, None, -2)])
        unshifted = feed_tokens(engine, b"!", 20, slot_id=1)
        assert unshifted == cold(ReferenceOptions(layers=2, dim=16, heads=2), TEXT[:20] + b"!")


def test_a_copy_may_end_behind_an_image_of_few_positions() -> None:
    prompt = special("a<image:9:3:red>bc")
    with reference() as engine:
        open_greedy(engine, 0, 1)
        expected = feed(engine, prompt)
        engine.apply([KVCopy(0, 1, 5)])
        assert feed_tokens(engine, b"c", 5, slot_id=1) == expected


def feed_tokens_unsampled(engine: ReferenceEngine, text: bytes, slot_id: int = 0) -> None:
    engine.decode(token_batch(Span(slot_id, slot_id, 0, tuple(text))))


# --- the window ----------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 5])
def test_sliding_layers_keep_the_window_and_what_is_spare(spare: int) -> None:
    options = ReferenceOptions(dim=16, heads=2, window=8, spare=spare)
    with reference(options) as engine:
        assert engine.oldest() == (-1,) * 4
        feed_tokens_unsampled(engine, TEXT[:20], 2)
        assert engine.oldest() == (-1, -1, 20 - 8 - spare, -1)


def test_going_back_within_what_is_kept_is_as_if_never_gone_on() -> None:
    options = ReferenceOptions(dim=16, heads=2, window=8, spare=5)
    with reference(options) as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, TEXT[:20], 0)
        engine.apply([KVRemove(0, 15)])
        assert feed_tokens(engine, b"!", 15) == cold(options, TEXT[:15] + b"!")


def test_going_back_beyond_what_is_kept_gives_other_logits_and_no_error() -> None:
    with reference(WINDOW) as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, TEXT[:30], 0)
        engine.apply([KVRemove(0, 15)])
        assert engine.oldest()[0] == 15
        assert feed_tokens(engine, b"!", 15) != cold(WINDOW, TEXT[:15] + b"!")


def test_with_all_kept_going_back_is_as_if_never_gone_on() -> None:
    with reference(WINDOW, swa_full=True) as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, TEXT[:30], 0)
        engine.apply([KVRemove(0, 15)])
        assert feed_tokens(engine, b"!", 15) == cold(WINDOW, TEXT[:15] + b"!")


def test_a_copy_holds_what_its_source_holds_of_the_window() -> None:
    with reference(WINDOW) as engine:
        feed_tokens_unsampled(engine, TEXT[:30])
        engine.apply([KVCopy(0, 1, 30), KVCopy(0, 2, 25), KVCopy(0, 3, 10)])
        assert engine.oldest() == (22, 22, 22, 10)


# --- checkpoints ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [WINDOW, RECURRENT], ids=["window", "recurrent"])
def test_a_slot_put_back_is_as_if_never_gone_on(options: ReferenceOptions) -> None:
    with reference(options) as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, TEXT[:15], 0)
        engine.apply([CheckpointSave(1, 0)])
        feed_tokens(engine, TEXT[15:30], 15)
        engine.apply([CheckpointRestore(1, 0, 15)])
        assert feed_tokens(engine, b"!", 15) == cold(options, TEXT[:15] + b"!")


def test_a_checkpoint_is_as_large_as_what_it_keeps() -> None:
    row = 3 * 16 * 8  # keys, turned keys and values of one cell in one layer
    with reference(WINDOW) as engine:
        feed_tokens_unsampled(engine, TEXT[:30])
        engine.apply([CheckpointSave(1, 0)])
        assert engine.checkpoint_bytes(1) == 8 * row
    with reference(RECURRENT) as engine:
        feed_tokens_unsampled(engine, TEXT[:30])
        engine.apply([CheckpointSave(1, 0)])
        assert engine.checkpoint_bytes(1) == 16 * 8


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([CheckpointSave(1, 0)], "checkpoint 1 is kept already"),
        ([CheckpointDrop(2)], "checkpoint 2 is not kept"),
        ([CheckpointRestore(2, 0, 9)], "checkpoint 2 is not kept"),
        ([CheckpointRestore(1, 0, 8)], "its first 8 positions are not those of checkpoint 1"),
        ([CheckpointRestore(1, 1, 9)], "slot 1: 0 of the first 9 positions"),
        ([CheckpointRestore(1, 2, 9)], "slot 2: its first 9 positions are not those"),
        ([CheckpointRestore(1, 0, 16)], "slot 0: 15 of the first 16 positions"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_a_bug(edits: list[Edit], message: str) -> None:
    with reference(WINDOW) as engine:
        open_greedy(engine, 0, 2)
        feed_tokens(engine, TEXT[:9], 0)
        engine.apply([CheckpointSave(1, 0)])
        feed_tokens(engine, TEXT[9:15], 9)
        feed_tokens(engine, TEXT[1:16], 0, slot_id=2)
        with pytest.raises(AssertionError, match=message):
            engine.apply(edits)


# --- recurrent states ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([KVRemove(0, 5)], "slot 0: 10 of 15 inputs cannot be taken back"),
        ([KVRemove(0, 0, 5)], "slot 0: 5 of 15 inputs cannot be taken back"),
        ([KVShift(0, 5, None, 1)], "the cache cannot shift"),
        ([KVCopy(0, 1, 9)], "a copy of 9 of slot 0's 15 positions takes a restore"),
        ([KVCopy(0, 1, 9), KVCopy(1, 2, 9)], "a copy of 9 of slot 0's 15"),
        ([KVCopy(0, 1, 9), CheckpointSave(2, 1)], "a copy of 9 of slot 0's 15"),
    ],
)
def test_what_spoils_a_state_is_a_bug(edits: list[Edit], message: str) -> None:
    with reference(RECURRENT) as engine:
        feed_tokens_unsampled(engine, TEXT[:15])
        with pytest.raises(AssertionError, match=message):
            engine.apply(edits)


def test_without_attention_a_checkpoint_goes_into_an_empty_slot() -> None:
    options = ReferenceOptions(layers=1, dim=16, heads=2, recurrent=True)
    with reference(options) as engine:
        assert not engine.limits.has_attention
        open_greedy(engine, 0)
        feed_tokens_unsampled(engine, TEXT[:15])
        engine.apply([CheckpointSave(1, 0), KVRemove(0, 0), CheckpointRestore(1, 0, 15)])
        assert feed_tokens(engine, TEXT[15:], 15) == cold(options, TEXT)


def test_to_remove_all_or_nothing_of_a_state_is_no_bug() -> None:
    with reference(RECURRENT) as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, TEXT[:15], 0)
        engine.apply([KVRemove(0, 15), KVRemove(0, 0), KVRemove(0, 0)])
        assert feed_tokens(engine, b"!", 0) == cold(RECURRENT, b"!")


@pytest.mark.parametrize(
    "edits",
    [
        [KVCopy(0, 1, 4), KVCopy(0, 2, 6)],
        [KVCopy(0, 1, 6), KVCopy(0, 1, 6)],
        [KVCopy(0, 1, 0)],
        [KVCopy(0, 0, 5)],
    ],
    ids=["more than there is", "into a slot that holds cells", "nothing", "itself"],
)
def test_a_copy_that_makes_no_sense_is_a_bug(edits: list[Edit]) -> None:
    with reference() as engine:
        feed_tokens_unsampled(engine, b"hello")
        with pytest.raises(AssertionError, match=r"slot [012]"):
            engine.apply(edits)
