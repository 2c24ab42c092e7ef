"""Rows of images as llama.cpp takes them, and which groups share a call."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

pytest.importorskip("llama_cpp")

from runnerd.core.batch import Span
from runnerd.engine.base import EncodedImage
from runnerd.engine.llama.groups import whole_groups
from runnerd.engine.llama.media_rows import MediaRows, past_media, positions_of

N_EMBD = 3


def grid(width: int, height: int) -> EncodedImage:
    """Return an image with M-RoPE: time, y, x, and one that is not used."""
    y, x = np.divmod(np.arange(width * height, dtype=np.int32), np.int32(width))
    offsets = np.stack([np.zeros_like(x), y, x, np.zeros_like(x)])
    rows = np.arange(x.size * N_EMBD, dtype=np.float32).reshape(-1, N_EMBD)
    return EncodedImage(rows, offsets)


def line(*lengths: int) -> EncodedImage:
    """Return an image of groups that take a position for each row."""
    offsets = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])[np.newaxis]
    rows = np.arange(offsets.size * N_EMBD, dtype=np.float32).reshape(-1, N_EMBD)
    return EncodedImage(rows, offsets)


def span(
    image: EncodedImage, n_rows: int, *, slot_id: int = 0, pos: int = 0, row0: int = 0
) -> Span:
    inputs = tuple(range(-1, -1 - n_rows, -1))
    return Span(0, slot_id, pos, inputs, False, media_id=1, row0=row0, media=image)


def test_positions_are_those_of_the_rows_and_no_token_uses_the_last_axis() -> None:
    assert positions_of(span(grid(3, 2), 4, pos=10, row0=2)).tolist() == [
        [10, 10, 10, 10],
        [10, 11, 11, 11],
        [12, 10, 11, 12],
        [0, 0, 0, 0],
    ]


@pytest.mark.parametrize(("width", "height"), [(5, 2), (2, 5), (1, 1), (4, 4)])
def test_what_follows_an_image_comes_behind_its_longer_side(width: int, height: int) -> None:
    image = grid(width, height)
    assert past_media([7], [span(image, width * height, pos=7)]) == [7 + max(width, height)]


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_an_image_in_pieces_ends_where_it_ends_at_once(
    width: int, height: int, data: st.DataObject
) -> None:
    image, n_rows = grid(width, height), width * height
    cuts = sorted(data.draw(st.sets(st.integers(1, n_rows))) | {0, n_rows})
    n_past = [3, 50]
    for start, stop in pairwise(cuts):
        n_past = past_media(n_past, [span(image, stop - start, slot_id=1, pos=50, row0=start)])
    assert n_past == [3, 50 + max(width, height)]


def test_groups_of_an_image_follow_each_other() -> None:
    image = line(3, 2)
    spans = [span(image, 3, pos=5), span(image, 2, pos=8, row0=3)]
    assert past_media([5], spans) == [10]


@pytest.mark.parametrize("pos", [4, 6])
def test_a_group_that_does_not_begin_where_its_slot_ends_is_refused(pos: int) -> None:
    with pytest.raises(AssertionError, match="slot 0 has 5"):
        past_media([5], [span(line(3), 3, pos=pos)])


def test_rows_of_several_slots_make_a_batch_axis_by_axis() -> None:
    rows = MediaRows(n_batch=8, n_slots=4, n_embd=N_EMBD, n_axes=4)
    first, second = grid(2, 1), grid(1, 2)
    last = replace(span(second, 1, slot_id=3, pos=9, row0=1), wants_logits=True)
    batch, n_outputs = rows.fill([span(first, 2, slot_id=1, pos=4), last])
    assert (batch.n_tokens, n_outputs) == (3, 1)
    assert batch.pos[: 4 * 3] == [4, 4, 9, 4, 4, 10, 4, 5, 9, 0, 0, 0]
    assert [batch.seq_id[row][0] for row in range(3)] == [1, 1, 3]
    assert [batch.logits[row] for row in range(3)] == [0, 0, 1]
    assert batch.embd[: 3 * N_EMBD] == [*first.rows.ravel(), *second.rows[1]]
    assert not batch.token


def lengths_of(calls: Sequence[Sequence[Span]]) -> list[list[int]]:
    return [[len(each.inputs) for each in together] for together in calls]


def groups_of(*lengths: int) -> list[Span]:
    return [span(line(n), n, slot_id=slot_id) for slot_id, n in enumerate(lengths)]


def test_groups_share_a_call_as_long_as_a_pass_holds_them() -> None:
    spans = groups_of(4, 2, 2, 3, 5)
    calls = list(whole_groups(spans, 8, of_one_length=False))
    assert lengths_of(calls) == [[4, 2, 2], [3, 5]]


def test_where_passes_are_cut_by_length_only_groups_of_one_length_share_a_call() -> None:
    calls = list(whole_groups(groups_of(2, 2, 3, 2), 8, of_one_length=True))
    assert lengths_of(calls) == [[2, 2], [3], [2]]


def test_two_groups_of_a_slot_never_share_a_call() -> None:
    calls = list(whole_groups([*groups_of(2, 2), *groups_of(2)], 8, of_one_length=False))
    assert lengths_of(calls) == [[2, 2], [2]]


def test_a_group_larger_than_a_pass_is_refused() -> None:
    with pytest.raises(AssertionError, match="9 rows, a pass takes 8"):
        list(whole_groups(groups_of(9), 8, of_one_length=False))
