"""Inputs, groups and positions; cuts on the borders of groups and of units."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.core.prompt import (
    Layout,
    Prompt,
    common_prefix,
    keep_stop,
    media_key,
    shift_stop,
    truncate,
)
from runnerd.errors import PromptTooLong
from tests.core.naive import cells_of, media_rows
from tests.core.whole_units import assert_whole_units, units_of
from tests.helpers import Image, make_prompt


def layout_of(n_inputs: int, *groups: tuple[int, int]) -> Layout:
    """Return the layout of so many inputs with images at [start, stop)."""
    parts: list[list[int] | Image] = []
    at = 0
    for media_id, (start, stop) in enumerate(groups):
        parts += [[1] * (start - at), Image(media_id, stop - start)]
        at = stop
    return make_prompt(*parts, [1] * (n_inputs - at)).layout


images = st.builds(
    lambda n_rows, saved, media_id, n_tiles, has_marks: Image(
        media_id, n_rows, max(1, n_rows - saved), n_tiles=n_tiles, has_marks=has_marks
    ),
    st.integers(1, 9),
    st.integers(0, 8),
    st.integers(0, 2**40),
    st.integers(1, 3),
    st.booleans(),
)
prompts = st.lists(
    st.one_of(st.lists(st.integers(0, 3), max_size=9), images),
    max_size=6,
    unique_by=lambda part: part.media_id if isinstance(part, Image) else object(),
).map(lambda parts: make_prompt(*parts))


def borders(prompt: Prompt) -> list[int]:
    """Return the places where a cut splits no group."""
    inside = {i for group in prompt.groups for i in range(group.start + 1, group.stop)}
    return [i for i in range(len(prompt.inputs) + 1) if i not in inside]


def unit_borders(prompt: Prompt) -> list[int]:
    """Return the places where a cut splits no unit."""
    spans = [(g.start - g.lead, g.stop + g.trail) for g in prompt.groups]
    inside = {i for start, stop in spans for i in range(start + 1, stop)}
    return [i for i in range(len(prompt.inputs) + 1) if i not in inside]


def test_media_rows_are_negative_and_differ_by_content_and_row() -> None:
    keys = {media_key(media_id, row) for media_id in (1, 11, 111) for row in range(100)}
    assert len(keys) == 300
    assert all(-(2**63) <= key < 0 for key in keys)


def test_a_token_after_an_image_has_the_position_behind_the_images_positions() -> None:
    layout = make_prompt([1, 2], Image(7, n_rows=10, n_pos=4), [3]).layout
    assert layout.position(2) == 2
    assert layout.position(12) == 6
    assert layout.position(50) == 44


@given(prompts)
def test_positions_are_those_of_counting_one_by_one(prompt: Prompt) -> None:
    layout = prompt.layout
    cells = cells_of(prompt.inputs, media_rows(prompt))
    for index in borders(prompt)[:-1]:
        assert layout.position(index) == cells[index][0]


@given(prompts, st.data())
def test_cuts_move_to_a_border_and_no_further(prompt: Prompt, data: st.DataObject) -> None:
    layout = prompt.layout
    index = data.draw(st.integers(0, len(prompt.inputs)))
    assert layout.cut_start(index) == max(i for i in borders(prompt) if i <= index)
    assert layout.unit_start(index) == max(i for i in unit_borders(prompt) if i <= index)
    assert layout.unit_stop(index) == min(i for i in unit_borders(prompt) if i >= index)


@given(prompts, st.data())
def test_a_layout_without_a_range_is_that_of_the_shorter_prompt(
    prompt: Prompt, data: st.DataObject
) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.sampled_from(unit_borders(prompt))] * 2)))
    layout = prompt.layout.without(start, stop)
    shorter = Prompt(prompt.inputs[:start] + prompt.inputs[stop:], layout.groups)
    for group in layout.groups:
        first = shorter.inputs[group.start]
        assert first == media_key(group.media_id, group.row0)
    cells_of(shorter.inputs, media_rows(prompt))
    assert_whole_units(shorter.inputs, units_of(prompt))
    assert sum(g.n_inputs for g in layout.groups) == sum(i < 0 for i in shorter.inputs)


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)), st.integers(0, 20))
def test_a_common_prefix_is_that_of_comparing_one_by_one(
    a: list[int], b: list[int], n_most: int
) -> None:
    n_equal = 0
    while n_equal < min(len(a), len(b), n_most) and a[n_equal] == b[n_equal]:
        n_equal += 1
    assert common_prefix(a, b, n_most) == n_equal


@pytest.mark.parametrize(
    ("n_keep", "kept"),
    [(-1, 20), (-(2**31), 20), (0, 0), (1, 1), (20, 20), (21, 20), (2**31 - 1, 20)],
)
def test_n_keep_is_at_most_the_prompt(n_keep: int, kept: int) -> None:
    assert keep_stop(Layout(), n_prompt=20, n_keep=n_keep, n_ctx=64) == kept


@pytest.mark.parametrize("n_keep", [-1, 63, 64, 65, 2**31 - 1])
def test_n_keep_leaves_an_input_that_can_be_dropped(n_keep: int) -> None:
    assert keep_stop(Layout(), n_prompt=64, n_keep=n_keep, n_ctx=64) == 63


def test_an_image_across_the_border_of_n_keep_is_not_kept() -> None:
    layout = layout_of(30, (10, 20))
    assert keep_stop(layout, 30, n_keep=15, n_ctx=64) == 10
    assert keep_stop(layout, 30, n_keep=20, n_ctx=64) == 20


@pytest.mark.parametrize(
    ("n_keep", "n_kept", "n_dropped"),
    [
        (-1, 2047, 1),
        (-(2**63), 2047, 1),
        (0, 0, 1024),
        (1, 1, 1023),
        (5, 5, 1021),
        (2046, 2046, 1),
        (2047, 2047, 1),
        (2048, 2047, 1),
        (2049, 2047, 1),
        (2**63, 2047, 1),
    ],
)
def test_a_shift_of_a_whole_context_drops_something_whatever_is_to_be_kept(
    n_keep: int, n_kept: int, n_dropped: int
) -> None:
    layout = layout_of(2048)
    kept = keep_stop(layout, n_prompt=2048, n_keep=n_keep, n_ctx=2048)
    assert kept == n_kept
    assert shift_stop(layout, kept, 2048, n_ctx=2048) - kept == n_dropped


@pytest.mark.parametrize(
    ("n_keep", "n_past", "groups", "n_dropped"),
    [
        (5, 2048, [], 1021),
        (0, 2048, [], 1024),
        (1, 2048, [], 1023),
        (2047, 2048, [], 1),
        (0, 1548, [], 524),
        (0, 2048, [(1019, 1531)], 1531),
        (0, 2048, [(1024, 1536)], 1024),
        (0, 2048, [(512, 1024)], 1024),
        (0, 2048, [(0, 512)], 1024),
        (0, 2048, [(0, 1500)], 1500),
        (0, 2048, [(0, 1)], 1024),
        (0, 2048, [(1023, 1024)], 1024),
        (0, 2048, [(1023, 1025)], 1025),
        (0, 2048, [(0, 512), (512, 1024), (1024, 1536)], 1024),
        (0, 2048, [(0, 600), (600, 1200), (1200, 1800)], 1200),
        (0, 2048, [(0, 2048)], 2048),
        (5, 2048, [(5, 1500)], 1495),
        (0, 2048, [(1000, 1030), (1030, 1060)], 1030),
        (0, 2048, [(1000, 1024), (1024, 1060)], 1024),
        (2000, 2048, [(2000, 2048)], 48),
    ],
)
def test_a_shift_frees_half_of_what_may_go_on_group_borders(
    n_keep: int, n_past: int, groups: list[tuple[int, int]], n_dropped: int
) -> None:
    layout = layout_of(n_past, *groups)
    assert shift_stop(layout, n_keep, n_past, n_ctx=2048) - n_keep == n_dropped


def test_a_prompt_that_fits_is_not_cut() -> None:
    prompt = make_prompt([1, 2, 3])
    assert truncate(prompt, n_keep=0, n_room=3) is prompt


def test_a_cut_drops_what_comes_right_after_n_keep() -> None:
    assert truncate(make_prompt(range(10)), n_keep=2, n_room=6).inputs == (0, 1, 6, 7, 8, 9)


def test_a_cut_extends_to_the_end_of_the_image_that_it_would_split() -> None:
    prompt = make_prompt([1, 2], Image(7, 4), [3], Image(8, 3), [4, 5])
    for n_room in (8, 9, 10, 11):
        cut = truncate(prompt, n_keep=2, n_room=n_room)
        assert [group.media_id for group in cut.groups] == [8]
        assert cut.inputs == (1, 2, 3, *(media_key(8, row) for row in range(3)), 4, 5)
        assert (cut.groups[0].start, cut.groups[0].stop) == (3, 6)


def test_a_prompt_whose_last_image_does_not_fit_is_refused_with_numbers() -> None:
    prompt = make_prompt([1, 2], Image(7, 8))
    with pytest.raises(PromptTooLong) as caught:
        truncate(prompt, n_keep=2, n_room=9)
    assert caught.value.details == {"n_prompt": 10, "n_room": 9, "n_keep": 2}


@given(prompts, st.integers(0, 60), st.integers(1, 60))
def test_a_cut_is_as_short_as_unit_borders_allow(prompt: Prompt, n_keep: int, n_room: int) -> None:
    n_prompt = len(prompt.inputs)
    n_keep = keep_stop(prompt.layout, n_prompt, n_keep, n_room)
    fitting = [i for i in unit_borders(prompt) if n_keep <= i and n_keep + n_prompt - i <= n_room]
    stop = min(fitting, default=n_prompt)
    if n_prompt > n_room and stop == n_prompt:
        with pytest.raises(PromptTooLong):
            truncate(prompt, n_keep, n_room)
        return
    cut = truncate(prompt, n_keep, n_room)
    assert cut.inputs == prompt.inputs[:n_keep] + prompt.inputs[stop:]
    assert sum(g.n_inputs for g in cut.groups) == sum(i < 0 for i in cut.inputs)
    assert_whole_units(cut.inputs, units_of(prompt))


def test_of_many_groups_those_from_an_input_on_are_not_copied() -> None:
    layout = make_prompt(*(Image(media_id, 2) for media_id in range(10_000))).layout
    tracemalloc.start()
    try:
        first = next(layout.groups_from(5))
        n_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert first is layout.groups[2]
    assert n_bytes < 2000
