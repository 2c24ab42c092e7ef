"""The prefix cache: common prefixes, the slot to take, and how far a slot's beginning is of use.

The first three sections port Ollama's cache tests (TestCountCommon, TestFindCacheSlot,
TestLoadCacheSlot): what a policy there decides otherwise, the name of the case says.
"""

import pytest

from runnerd.core.batch import COPY_ROWS, Limits
from runnerd.core.checkpoints import BUDGET_BYTES, Checkpoint, Checkpoints
from runnerd.core.prefix import Search, Start, start_at
from runnerd.core.prompt import Layout, Prompt, common_prefix
from runnerd.core.slots import CacheKey, Slot, SlotPool
from tests.helpers import Image, make_limits, make_prompt

KEY: CacheKey = ("", ())
UNIFIED = make_limits(n_slots=8, n_ctx=512, is_unified=True)
SPLIT = make_limits(n_slots=8, n_ctx=512)


def make_pool(*remembered: list[int], leased: tuple[int, ...] = ()) -> SlotPool:
    """Return a pool whose slots remember these inputs, the first unused for longest."""
    pool = SlotPool(len(remembered))
    for slot, inputs in zip(pool.slots, remembered, strict=True):
        slot.inputs, slot.n_past, slot.tick = list(inputs), len(inputs), pool.next_tick()
        slot.key = KEY
        slot.is_leased = slot.slot_id in leased
    return pool


def search(
    pool: SlotPool, prompt: Prompt | list[int], limits: Limits = UNIFIED, key: CacheKey = KEY
) -> Search:
    made = prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt))
    known = Checkpoints(BUDGET_BYTES)
    return Search(limits, pool, known, key, list(made.inputs), made.layout)


def chosen(
    pool: SlotPool, prompt: Prompt | list[int], limits: Limits = UNIFIED
) -> tuple[int, int, int]:
    """Return the slot taken, the slot started from, and how many inputs of it."""
    slot, start = search(pool, prompt, limits).choose()
    return slot.slot_id, start.slot.slot_id, start.n_inputs


# --- what two have in common -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "n_common"),
    [
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2, 3], [1, 2, 4], 2),
        ([1, 2, 3], [4, 5, 6], 0),
        ([], [1, 2, 3], 0),
    ],
)
def test_the_common_prefix_is_counted(a: list[int], b: list[int], n_common: int) -> None:
    assert common_prefix(a, b, 10) == n_common


def test_media_are_common_where_their_content_is() -> None:
    one, two = make_prompt([1], Image(7, 3), [2]), make_prompt([1], Image(8, 3), [2])
    assert common_prefix(list(one.inputs), list(one.inputs), 10) == 5
    assert common_prefix(list(one.inputs), list(two.inputs), 10) == 1


# --- the slot to take ------------------------------------------------------------------------


def test_the_longest_prefix_of_free_slots_wins() -> None:
    assert chosen(make_pool([1, 2], [1, 2, 3, 4], [1, 2, 3]), [1, 2, 3, 4, 5]) == (1, 1, 4)


def test_without_a_prefix_an_empty_slot_is_taken() -> None:
    assert chosen(make_pool([1, 2], [3, 4], []), [9, 9]) == (2, 2, 0)


def test_without_an_empty_slot_the_one_unused_for_longest_gives_way() -> None:
    pool = make_pool([1, 2], [3, 4], [5, 6])
    pool.slots[0].tick = pool.next_tick()
    assert chosen(pool, [9, 9]) == (1, 1, 0)


@pytest.mark.parametrize(("limits", "taken"), [(SPLIT, 3), (UNIFIED, 0)])
def test_where_slots_are_apart_an_empty_one_next_to_those_in_use_is_taken(
    limits: Limits, taken: int
) -> None:
    pool = make_pool([], [], [5, 6], [], [7, 8], leased=(2, 4))
    assert chosen(pool, [9, 9], limits) == (taken, taken, 0)


@pytest.mark.parametrize(("limits", "taken"), [(SPLIT, 1), (UNIFIED, 0)])
def test_where_slots_are_apart_one_of_the_longer_unused_half_next_to_those_in_use_gives_way(
    limits: Limits, taken: int
) -> None:
    pool = make_pool([1], [2], [3], [4], [5], leased=(2,))
    assert chosen(pool, [9, 9], limits) == (taken, taken, 0)


def test_of_equal_prefixes_the_slot_that_loses_less_wins() -> None:
    assert chosen(make_pool([1, 2, 3, 4], [1, 2, 3]), [1, 2, 3, 9]) == (1, 1, 3)


def test_a_slot_in_use_offers_its_prefix_to_a_free_one() -> None:
    assert chosen(make_pool([1, 2, 3], [], leased=(0,)), [1, 2, 3, 4]) == (1, 0, 3)


def test_a_free_slot_with_the_same_prefix_comes_before_one_in_use() -> None:
    assert chosen(make_pool([1, 2, 3], [1, 2, 3], leased=(0,)), [1, 2, 3, 4]) == (1, 1, 3)


def test_a_slot_that_would_lose_more_than_half_is_copied_not_cut() -> None:
    assert chosen(make_pool([1, 2, 3, 4, 5], []), [1, 2, 9]) == (1, 0, 2)


def test_a_slot_that_keeps_half_is_used_in_place() -> None:
    assert chosen(make_pool([1, 2, 3, 4], []), [1, 2, 9]) == (0, 0, 2)


def test_a_copy_never_replaces_its_own_source() -> None:
    assert chosen(make_pool([1, 2, 3, 4, 5], [6]), [1, 2, 9]) == (1, 0, 2)


def test_a_source_unused_for_longest_is_cut_where_another_slot_would_lose_more() -> None:
    stranger, conversation = [1, 2, *range(30, 40)], [1, 2, *range(100, 150)]
    assert chosen(make_pool(stranger, conversation), [1, 2, 7, 8, 9]) == (0, 0, 2)


def test_a_source_unused_for_longest_is_copied_where_another_slot_loses_less() -> None:
    assert chosen(make_pool([1, 2, *range(100, 150)], [7, 8]), [1, 2, 7, 8, 9]) == (1, 0, 2)


def test_the_only_free_slot_keeps_what_it_shares_with_the_prompt() -> None:
    assert chosen(make_pool([1, 2, 3, 4, 5]), [1, 2, 9]) == (0, 0, 2)


def test_a_copy_goes_to_the_slot_unused_for_longest_if_none_is_empty() -> None:
    pool = make_pool([7, 7], [8, 8], [1, 2, 3], leased=(2,))
    assert chosen(pool, [1, 2, 3, 4]) == (0, 2, 3)


@pytest.mark.parametrize(("n_shared", "is_copied"), [(COPY_ROWS - 1, False), (COPY_ROWS, True)])
def test_a_stream_is_copied_only_if_that_saves_more_than_it_costs(
    n_shared: int, is_copied: bool
) -> None:
    shared = list(range(1, n_shared + 1))
    pool = make_pool([*shared, *range(200, 300)], [])
    expected = (1, 0, n_shared) if is_copied else (1, 1, 0)
    assert chosen(pool, [*shared, 999], SPLIT) == expected


def test_slots_of_another_scope_or_with_other_adapters_offer_nothing() -> None:
    pool = make_pool([1, 2, 3])
    _, start = search(pool, [1, 2, 3, 4], key=("tenant", ())).choose()
    assert start.n_inputs == 0


# --- what is loaded --------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2], [1]])
def test_at_least_one_input_is_evaluated_anew(prompt: list[int]) -> None:
    assert chosen(make_pool([1, 2, 3]), prompt) == (0, 0, len(prompt) - 1)


def test_a_last_medium_is_evaluated_anew_as_a_whole() -> None:
    prompt = make_prompt([1, 2], Image(7, 4))
    assert chosen(make_pool(list(prompt.inputs)), prompt) == (0, 0, 2)


def test_only_what_is_cached_counts_as_remembered() -> None:
    pool = make_pool([1, 2, 3, 4])
    pool.slots[0].n_past = 2
    assert chosen(pool, [1, 2, 3, 4, 5]) == (0, 0, 2)


def test_moved_cells_are_not_offered() -> None:
    pool = make_pool([1, 2, 3, 4], [], leased=(0,))
    pool.slots[0].moved_at = 1
    assert chosen(pool, [1, 2, 3, 4, 5]) == (1, 0, 1)


# --- how far a slot is of use ----------------------------------------------------------------


def slot_at(n_past: int, oldest: int = 0) -> Slot:
    return Slot(0, list(range(n_past)), n_past, key=KEY, oldest=oldest)


def reach(
    slot: Slot, n_common: int, *known: int, window: int = 0, can_rewind: bool = True
) -> tuple[int, int | None]:
    """Return how far a slot is of use with these checkpoints, and which one it takes."""
    limits = make_limits(n_ctx=512, window=window, can_rewind=can_rewind)
    checkpoints = [Checkpoint(n, n, n, 0) for n in known]
    start = start_at(limits, slot, Layout(), n_common, checkpoints)
    assert start == Start(slot, start.n_inputs, start.checkpoint)
    return start.n_inputs, None if start.checkpoint is None else start.checkpoint.n_inputs


def test_a_plain_cache_goes_back_anywhere() -> None:
    assert reach(slot_at(100), 37, 20) == (37, None)


def test_a_window_that_still_holds_what_the_next_input_sees_goes_back() -> None:
    assert reach(slot_at(100, oldest=40), 60, 20, window=20) == (60, None)


def test_a_window_that_has_lost_a_position_goes_back_to_a_checkpoint() -> None:
    assert reach(slot_at(100, oldest=41), 60, 20, 50, 61, window=20) == (50, 50)


def test_without_a_checkpoint_it_starts_again() -> None:
    assert reach(slot_at(100, oldest=41), 60, window=20) == (0, None)


def test_a_window_that_has_forgotten_nothing_goes_back_anywhere() -> None:
    assert reach(slot_at(15, oldest=0), 3, window=20) == (3, None)


def test_a_recurrent_state_goes_on_only_from_where_it_is() -> None:
    assert reach(slot_at(100), 100, 90, can_rewind=False) == (100, None)
    assert reach(slot_at(100), 99, 90, can_rewind=False) == (90, 90)
    assert reach(slot_at(100), 80, 90, can_rewind=False) == (0, None)


def test_a_hybrid_with_a_window_needs_both() -> None:
    assert reach(slot_at(100, oldest=80), 100, 90, window=20, can_rewind=False) == (100, None)
    assert reach(slot_at(100, oldest=81), 100, 90, window=20, can_rewind=False) == (90, 90)


def test_the_window_is_measured_in_positions_not_in_inputs() -> None:
    prompt = make_prompt([1] * 10, Image(7, 20, n_pos=2), [1] * 10)  # 40 inputs, 22 positions
    limits = make_limits(n_ctx=512, window=8)
    slot = Slot(0, list(prompt.inputs), 40, key=KEY, oldest=13)
    assert start_at(limits, slot, prompt.layout, 39, ()).n_inputs == 39
    assert start_at(limits, slot, prompt.layout, 38, ()).n_inputs == 0
