"""The slot pool: permits, leases, and the order in which idle slots give way."""

import pytest

from runnerd.core.slots import SlotPool


def make_pool(*remembered: list[int], n_slots: int | None = None) -> SlotPool:
    """Return a pool whose first slots remember these inputs, the first unused for longest."""
    pool = SlotPool(len(remembered) if n_slots is None else n_slots)
    for slot, inputs in zip(pool.slots, remembered, strict=False):
        slot.inputs, slot.n_past, slot.tick = list(inputs), len(inputs), pool.next_tick()
        slot.key = ("", ())
    return pool


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


def test_idle_slots_come_least_recently_used_first() -> None:
    pool = make_pool([1], [2], [3], n_slots=4)
    pool.slots[0].tick = pool.next_tick()
    assert [slot.slot_id for slot in pool.idle()] == [1, 2, 0]


def test_of_moved_cells_only_those_before_them_are_offered() -> None:
    (slot,) = make_pool([1, 2, 3, 4]).slots
    assert slot.n_offered == 4
    slot.moved_at = 1
    assert slot.n_offered == 1


@pytest.mark.parametrize(("slot_id", "n"), [(0, 1), (1, 0), (2, 2), (3, 0), (4, 1)])
def test_a_slot_has_as_many_beside_it_as_neighbours_are_in_use(slot_id: int, n: int) -> None:
    pool = SlotPool(5)
    for leased in (1, 3):
        pool.slots[leased].is_leased = True
    assert pool.n_beside(pool.slots[slot_id]) == n
