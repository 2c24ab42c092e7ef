"""Checkpoints: known by their content, within a budget, and where prompts stop for them."""

from collections.abc import Sequence

import pytest

from runnerd.core.checkpoints import MIN_APART, TAIL, Checkpoints, halts_of
from runnerd.core.prompt import Group, Layout
from runnerd.core.slots import CacheKey
from tests.helpers import Image, make_prompt

KEY: CacheKey = ("", ())


def add(known: Checkpoints, inputs: Sequence[int], n_bytes: int, key: CacheKey = KEY) -> int:
    """Add a checkpoint of all the inputs and let a step save it; return its id."""
    made = known.add(key, inputs, len(inputs), len(inputs), 0)
    assert made is not None
    for dropped in known.sized([(made.checkpoint_id, n_bytes)]):
        assert dropped != made.checkpoint_id
    known.check()
    return made.checkpoint_id


def ids(known: Checkpoints, inputs: Sequence[int], key: CacheKey = KEY) -> list[int]:
    return [checkpoint.checkpoint_id for checkpoint in known.matching(key, inputs)]


def test_checkpoints_of_beginnings_are_found_the_shortest_first() -> None:
    known = Checkpoints(100)
    long, short = add(known, [1, 2, 3, 4], 10), add(known, [1, 2], 10)
    add(known, [1, 2, 9], 10)
    assert ids(known, [1, 2, 3, 4, 5]) == [short, long]
    assert ids(known, [1, 2, 3]) == [short]
    assert ids(known, [2]) == []


def test_the_same_beginning_is_not_kept_twice() -> None:
    known = Checkpoints(100)
    add(known, [1, 2], 10)
    assert known.add(KEY, [1, 2, 3], 2, 2, 0) is None


def test_scopes_do_not_share_checkpoints() -> None:
    known = Checkpoints(100)
    add(known, [1, 2], 10)
    add(known, [1, 2], 10, key=("tenant", ()))
    assert len(ids(known, [1, 2])) == 1


def test_media_keys_are_told_apart() -> None:
    known = Checkpoints(100)
    one, two = make_prompt(Image(7, 3)), make_prompt(Image(8, 3))
    add(known, one.inputs, 10)
    assert len(ids(known, one.inputs)) == 1
    assert ids(known, two.inputs) == []


def test_over_budget_the_one_unused_for_longest_goes() -> None:
    known = Checkpoints(30)
    first, second = add(known, [1], 10), add(known, [2], 10)
    known.use(known.matching(KEY, [1])[0])
    add(known, [3], 15)
    assert (ids(known, [1]), ids(known, [2])) == ([first], [])
    assert second != first


def test_one_that_is_larger_than_the_budget_is_dropped_at_once() -> None:
    known = Checkpoints(30)
    made = known.add(KEY, [1], 1, 1, 0)
    assert made is not None
    assert known.sized([(made.checkpoint_id, 31)]) == [made.checkpoint_id]
    known.check()
    assert (known.n_kept, known.n_bytes) == (0, 0)


def test_one_that_is_larger_than_the_budget_is_not_made_again_nor_are_longer_ones() -> None:
    known = Checkpoints(30)
    made = known.add(KEY, [1, 2], 2, 2, 0)
    assert made is not None
    known.sized([(made.checkpoint_id, 31)])
    assert known.add(KEY, [1, 2], 2, 2, 0) is None
    assert known.add(KEY, [3, 4, 5], 3, 3, 0) is None
    assert known.add(KEY, [1], 1, 1, 0) is not None


def test_room_is_made_before_one_is_saved_that_is_as_large_as_the_last() -> None:
    known = Checkpoints(30)
    first, _, _ = (add(known, [n], 10) for n in range(3))
    assert known.make_room() == []
    assert known.add(KEY, [7], 1, 1, 0) is not None
    assert known.make_room() == [first]
    known.check()
    assert known.n_bytes == 20


# --- halts -----------------------------------------------------------------------------------


def halts(
    n_prompt: int,
    *borders: int,
    n_cached: int = 0,
    known: Sequence[int] = (),
    groups: tuple[Group, ...] = (),
) -> list[int]:
    layout = Layout(groups)
    return halts_of(borders, layout, n_prompt, n_cached, known)


@pytest.mark.parametrize(("n_prompt", "expected"), [(1, []), (2, [1]), (5, [1]), (100, [96])])
def test_a_prompt_without_borders_halts_shortly_before_its_end(
    n_prompt: int, expected: list[int]
) -> None:
    assert halts(n_prompt) == expected


def test_a_border_close_to_the_end_serves_as_both() -> None:
    assert halts(200, 50, 180) == [180]
    assert halts(200, 198) == [200 - TAIL]


def test_the_last_border_and_the_end_if_they_are_apart() -> None:
    assert halts(300, 20, 100) == [100, 296]


def test_earlier_borders_are_ever_fewer() -> None:
    borders = tuple(range(50, 10_000, 50))
    made = halts(10_000, *borders)
    assert made == [1750, 5850, 7900, 8950, 9450, 9700, 9950]


def test_none_lies_in_what_is_cached_or_close_to_another() -> None:
    assert halts(300, 100, n_cached=100) == [296]
    assert halts(300, 100, known=[100 - MIN_APART + 1]) == [296]
    assert halts(300, 100, known=[100 - MIN_APART, 290]) == [100]


def test_none_lies_in_a_medium() -> None:
    prompt = make_prompt([1] * 90, Image(7, 20), [2])
    assert halts(111, groups=prompt.groups) == [90]
