"""The slot pool: leases, the longest prefix, the slot unused for longest."""

import pytest

from runnerd.core.slots import SlotPool


def make_pool(*remembered: list[int], n_slots: int | None = None) -> SlotPool:
    """Return a pool whose first slots remember these inputs, the first unused for longest."""
    pool = SlotPool(len(remembered) if n_slots is None else n_slots)
    for slot, inputs in zip(pool.slots, remembered, strict=False):
        slot.inputs, slot.n_past, slot.tick = list(inputs), len(inputs), pool.next_tick()
    return pool


def best(pool: SlotPool, inputs: list[int]) -> tuple[int, int]:
    slot, n_cached = pool.best_for(inputs)
    return slot.slot_id, n_cached


def test_permits_and_leases_add_up_to_the_slots() -> None:
    pool = SlotPool(2)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    assert pool.acquire() is None
    first.take(pool.slots[1])
    second.take(pool.slots[0])
    pool.check()
    first.give_back()
    pool.check()
    assert pool.n_free == 1


def test_a_permit_can_be_given_back_before_a_slot_is_taken() -> None:
    pool = SlotPool(1)
    lease = pool.acquire()
    assert lease is not None
    lease.give_back()
    pool.check()
    assert pool.n_free == 1


def test_a_lease_given_back_twice_is_a_bug() -> None:
    pool = SlotPool(2)
    lease = pool.acquire()
    assert lease is not None
    lease.take(pool.slots[0])
    lease.give_back()
    with pytest.raises(AssertionError, match="given back twice"):
        lease.give_back()
    pool.check()


def test_a_lease_takes_one_free_slot_while_it_lives() -> None:
    pool = SlotPool(2)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    first.take(pool.slots[0])
    with pytest.raises(AssertionError, match="holds a slot already"):
        first.take(pool.slots[1])
    with pytest.raises(AssertionError, match="slot 0 is leased"):
        second.take(pool.slots[0])
    second.give_back()
    with pytest.raises(AssertionError, match="was given back"):
        second.take(pool.slots[1])


def test_a_slot_given_back_remembers_only_what_is_cached() -> None:
    pool = make_pool([1, 2, 3])
    lease = pool.acquire()
    assert lease is not None
    lease.take(pool.slots[0])
    pool.slots[0].n_past = 2
    lease.give_back()
    assert pool.slots[0].inputs == [1, 2]


def test_the_longest_prefix_wins() -> None:
    pool = make_pool([1, 2], [1, 2, 3, 4], [1, 2, 3])
    assert best(pool, [1, 2, 3, 4, 5]) == (1, 4)


def test_of_equal_prefixes_the_slot_that_loses_less_wins() -> None:
    pool = make_pool([1, 2, 3, 4], [1, 2, 3])
    assert best(pool, [1, 2, 3, 9]) == (1, 3)


def test_a_prefix_of_half_of_what_the_slot_remembers_is_used() -> None:
    assert best(make_pool([1, 2, 3, 4], []), [1, 2, 9]) == (0, 2)


def test_a_long_conversation_is_not_cut_to_a_strangers_beginning() -> None:
    pool = make_pool([1, 2, 3, 4, 5], n_slots=2)
    assert best(pool, [1, 2, 9]) == (1, 0)


def test_a_shorter_prefix_that_fits_its_slot_beats_a_longer_one_that_does_not() -> None:
    pool = make_pool([7, 8], [1, 2, 3, *range(10, 20)], [1, 2])
    assert best(pool, [1, 2, 3, 99]) == (2, 2)


def test_without_a_prefix_an_empty_slot_is_taken() -> None:
    assert best(make_pool([1, 2], [3, 4], n_slots=3), [9, 9]) == (2, 0)


def test_without_an_empty_slot_the_one_unused_for_longest_gives_way() -> None:
    pool = make_pool([1, 2], [3, 4], [5, 6])
    pool.slots[0].tick = pool.next_tick()
    assert best(pool, [9, 9]) == (1, 0)


def test_the_slot_that_gives_way_keeps_what_it_shares_with_the_prompt() -> None:
    assert best(make_pool([1, 2, 3, 4, 5]), [1, 2, 9]) == (0, 2)


def test_leased_slots_are_not_offered() -> None:
    pool = make_pool([1, 2, 3], [8])
    lease = pool.acquire()
    assert lease is not None
    lease.take(pool.slots[0])
    assert best(pool, [1, 2, 3, 4]) == (1, 0)


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2], [1]])
def test_at_least_one_input_is_evaluated_anew(prompt: list[int]) -> None:
    _, n_cached = make_pool([1, 2, 3]).best_for(prompt)
    assert n_cached == len(prompt) - 1


def test_only_cached_inputs_count_as_remembered() -> None:
    pool = make_pool([1, 2, 3, 4])
    pool.slots[0].n_past = 2
    assert best(pool, [1, 2, 3, 4, 5]) == (0, 2)


def test_idle_slots_come_least_recently_used_first() -> None:
    pool = make_pool([1], [2], [3], n_slots=4)
    pool.slots[0].tick = pool.next_tick()
    assert [slot.slot_id for slot in pool.idle()] == [1, 2, 0]
