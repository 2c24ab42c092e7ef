"""Images with their marks, and in tiles: in the context all of one, or nothing."""

import pytest

from runnerd.core.batch import Limits
from runnerd.core.prompt import Layout
from runnerd.core.sequence import admit
from runnerd.errors import InvalidRequest, PromptTooLong
from tests.core.whole_units import assert_whole_units, units_of
from tests.helpers import (
    BEGIN_MARK,
    END_MARK,
    Image,
    make_batcher,
    make_limits,
    make_prompt,
    make_sequence,
    run_step,
)

MARKED = Image(7, 8, n_pos=3, encoded=True, has_marks=True)  # ten inputs, with its marks
TILED = Image(7, 3, n_tiles=3, encoded=True, has_marks=True)  # thirteen
CUTS = {  # inputs of the picture before a cut
    "before the begin mark": 0,
    "between the begin mark and the image": 1,
    "behind the first row": 2,
    "in the middle": 5,
    "before the last row": 8,
    "between the image and its end mark": 9,
    "behind the end mark": 10,
}


@pytest.mark.parametrize("n_before", CUTS.values(), ids=CUTS.keys())
def test_a_prompt_is_cut_before_or_behind_a_whole_picture(n_before: int) -> None:
    limits = make_limits(n_ctx=40, n_batch=32)
    n_left = 30  # a quarter of the context is for the answer
    prompt = make_prompt([1, 2], [3] * 20, MARKED, [4] * (n_left - 12 + n_before))
    sequence = make_sequence(1, prompt, limits=limits, truncate=True, n_keep=2)
    is_kept = n_before == 0
    assert len(sequence.layout.groups) == is_kept
    assert sequence.n_truncated == (20 if is_kept else 30)
    assert_whole_units(sequence.inputs, units_of(prompt))
    assert len(sequence.inputs) == sequence.n_prompt - sequence.n_truncated


@pytest.mark.parametrize("n_before", CUTS.values(), ids=CUTS.keys())
def test_what_is_kept_ends_before_or_behind_a_whole_picture(n_before: int) -> None:
    prompt = make_prompt([1, 2], MARKED, [3] * 60)
    sequence = make_sequence(1, prompt, truncate=True, n_keep=2 + n_before)
    is_kept = n_before == 10
    assert sequence.n_keep == (12 if is_kept else 2)
    assert len(sequence.layout.groups) == is_kept
    assert_whole_units(sequence.inputs, units_of(prompt))


@pytest.mark.parametrize("n_before", CUTS.values(), ids=CUTS.keys())
def test_a_full_context_drops_a_whole_picture_or_none_of_it(n_before: int) -> None:
    n_ctx = 40
    prompt = make_prompt([1] * (20 - n_before), MARKED, [2] * (10 + n_before))
    limits = make_limits(n_ctx=n_ctx, n_batch=64)
    batcher = make_batcher(n_ctx=n_ctx, n_batch=64)
    sequence = make_sequence(1, prompt, limits=limits, shift=True)
    batcher.submit(sequence)
    run_step(batcher)
    batcher.offer_media(7, "rows")
    run_step(batcher)
    run_step(batcher)
    assert sequence.n_shifts == 1
    is_kept = n_before == 0
    assert sequence.n_shifted == (20 if is_kept else 30 - n_before)
    assert len(sequence.layout.groups) == is_kept
    assert (BEGIN_MARK in sequence.inputs) == (END_MARK in sequence.inputs) == is_kept
    assert_whole_units(sequence.inputs, units_of(prompt))


@pytest.mark.parametrize("index", range(1, 13))
def test_tiles_of_one_picture_are_not_parted(index: int) -> None:
    layout = make_prompt([1] * 4, TILED, [2] * 4).layout
    assert layout.unit_start(4 + index) == 4
    assert layout.unit_stop(4 + index) == 17


def test_pictures_side_by_side_are_parted() -> None:
    layout = make_prompt(MARKED, TILED, MARKED).layout
    assert [layout.unit_start(index) for index in (10, 23)] == [10, 23]
    assert [layout.unit_stop(index) for index in (10, 23)] == [10, 23]


def test_the_same_prefix_may_end_inside_a_unit_between_its_groups() -> None:
    layout = make_prompt([1], TILED, [2]).layout
    assert [layout.cut_start(index) for index in (2, 5, 6, 8, 14)] == [2, 5, 6, 6, 14]


def test_positions_behind_marks_and_tiles_count_every_token_once() -> None:
    tiles = Image(7, 6, n_pos=2, n_tiles=2, has_marks=True)
    layout = make_prompt([1, 1], tiles, [2]).layout
    first, second = layout.groups
    assert [layout.position(g.start) for g in (first, second)] == [3, 6]
    assert layout.position(second.stop) == 8
    assert layout.position(second.stop + 1) == 9
    assert (first.row0, second.row0) == (0, 6)


def admitted(image: Image, limits: Limits) -> Layout:
    """Return the layout of an admitted prompt of some text and one image."""
    options = make_sequence(0, [1], truncate=True).options
    return admit(1, make_prompt([1], image, [2]), options, limits, 0.0).layout


def test_a_picture_that_fits_into_the_context_only_without_its_marks_is_refused() -> None:
    limits = make_limits(n_ctx=9, n_batch=16)
    with pytest.raises(InvalidRequest) as caught:
        admitted(MARKED, limits)
    assert caught.value.details["value"] == "a group of 10 inputs"
    assert caught.value.details["limit"] == "at most 9 in one (n_ctx)"


def test_a_picture_in_tiles_is_refused_as_a_whole() -> None:
    with pytest.raises(InvalidRequest, match="group of 13 inputs, expected at most 12"):
        admitted(TILED, make_limits(n_ctx=12, n_batch=16))
    assert len(admitted(TILED, make_limits(n_ctx=20, n_batch=3)).groups) == 3


@pytest.mark.parametrize(
    ("n_batch", "n_ubatch", "limit"),
    [(7, 16, "at most 7 in one (n_batch)"), (16, 7, "at most 7 in one (n_ubatch)")],
)
def test_the_limit_of_a_pass_that_is_too_small_for_a_group_is_named(
    n_batch: int, n_ubatch: int, limit: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        admitted(MARKED, make_limits(n_batch=n_batch, n_ubatch=n_ubatch))
    assert caught.value.details["value"] == "a group of 8 inputs"
    assert caught.value.details["limit"] == limit


def test_a_group_as_large_as_a_pass_is_taken_and_one_that_may_be_split_too() -> None:
    split = Image(7, 30, one_pass=False, encoded=True, has_marks=True)
    assert admitted(MARKED, make_limits(n_batch=8, n_ubatch=8)).groups
    assert admitted(split, make_limits(n_batch=8, n_ubatch=8)).groups


def test_a_last_picture_that_cannot_stay_is_refused_with_numbers() -> None:
    prompt = make_prompt([1] * 8, MARKED)
    with pytest.raises(PromptTooLong) as caught:
        make_sequence(1, prompt, limits=make_limits(n_ctx=12), truncate=True)
    assert caught.value.details == {"n_prompt": 18, "n_room": 9, "n_keep": 0}
