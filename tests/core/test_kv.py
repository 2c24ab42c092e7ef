"""The ledger of cells."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.core.kv import KVLedger


def test_cells_taken_and_given_back_add_up() -> None:
    ledger = KVLedger(n_slots=2, n_cells=10)
    ledger.take(0, 4)
    ledger.take(1, 6)
    ledger.give_back(0, 3)
    ledger.check()
    assert (ledger.held(0), ledger.held(1), ledger.n_used, ledger.n_free) == (1, 6, 7, 3)


def test_more_cells_than_are_free_cannot_be_taken() -> None:
    ledger = KVLedger(n_slots=2, n_cells=10)
    ledger.take(0, 9)
    with pytest.raises(AssertionError, match="2 cells taken, 1 free"):
        ledger.take(1, 2)
    ledger.check()


def test_a_slot_cannot_give_back_what_another_holds() -> None:
    ledger = KVLedger(n_slots=2, n_cells=10)
    ledger.take(0, 5)
    with pytest.raises(AssertionError, match="1 of 0 returned"):
        ledger.give_back(1, 1)
    ledger.check()


# --- sharing ---------------------------------------------------------------------------------


def test_sharers_are_the_other_slots_that_hold_cells_behind_so_many() -> None:
    ledger = KVLedger(n_slots=3, n_cells=20)
    ledger.take(0, 10)
    ledger.share(0, 1, 4)
    ledger.share(0, 2, 7)
    assert [ledger.sharers(0, n) for n in (0, 3, 4, 6, 7, 10)] == [[1, 2], [1, 2], [2], [2], [], []]


def test_shared_cells_count_once() -> None:
    ledger = KVLedger(n_slots=2, n_cells=10)
    ledger.take(0, 6)
    ledger.share(0, 1, 4)
    ledger.take(1, 3)
    ledger.check()
    assert (ledger.held(0), ledger.held(1), ledger.n_used) == (6, 7, 9)


def test_an_owner_that_goes_frees_only_what_nobody_else_holds() -> None:
    ledger = KVLedger(n_slots=3, n_cells=20)
    ledger.take(0, 10)
    ledger.share(0, 1, 6)
    ledger.share(1, 2, 3)
    ledger.give_back(0, 10)
    ledger.check()
    assert ledger.n_used == 6
    ledger.give_back(1, 6)
    ledger.check()
    assert ledger.n_used == 3
    ledger.give_back(2, 3)
    ledger.check()
    assert ledger.n_used == 0


def test_a_removal_may_end_inside_what_is_shared() -> None:
    ledger = KVLedger(n_slots=2, n_cells=20)
    ledger.take(0, 10)
    ledger.share(0, 1, 8)
    ledger.give_back(0, 5)
    ledger.check()
    assert (ledger.held(0), ledger.n_used, ledger.n_alone(0), ledger.n_alone(1)) == (5, 8, 0, 3)


def test_what_a_slot_holds_alone_is_its_end() -> None:
    ledger = KVLedger(n_slots=2, n_cells=20)
    ledger.take(0, 5)
    ledger.share(0, 1, 3)
    ledger.take(1, 4)
    assert (ledger.n_alone(0), ledger.n_alone(1)) == (2, 4)


def test_cells_held_only_by_some_slots_count_once() -> None:
    ledger = KVLedger(n_slots=3, n_cells=30)
    ledger.take(0, 10)
    ledger.share(0, 1, 6)
    ledger.share(0, 2, 4)
    ledger.take(2, 2)
    assert ledger.n_only_in([0, 1]) == 6
    assert ledger.n_only_in([0, 1, 2]) == 12
    assert ledger.n_also_outside([0, 1], 0, 10) == 4
    assert ledger.n_also_outside([0, 1], 0, 3) == 3


changes = st.lists(
    st.tuples(st.sampled_from(("take", "share", "give_back")), *[st.integers(0, 30)] * 3),
    max_size=60,
)


@given(changes)
def test_the_ledger_counts_what_sets_of_cells_would(made: list[tuple[str, int, int, int]]) -> None:
    ledger = KVLedger(n_slots=4, n_cells=1000)
    slots: list[list[int]] = [[] for _ in range(4)]
    names = count()
    for change, a, b, n in made:
        slot_id, other = a % 4, b % 4
        match change:
            case "take" if sum(len(set(cells)) for cells in slots) + n <= 1000:
                ledger.take(slot_id, n)
                slots[slot_id] += [next(names) for _ in range(n)]
            case "share" if slot_id != other:
                ledger.give_back(slot_id, len(slots[slot_id]))
                slots[slot_id] = slots[other][:n]
                ledger.share(other, slot_id, len(slots[slot_id]))
            case _:
                n_left = max(len(slots[slot_id]) - n, 0)
                ledger.give_back(slot_id, len(slots[slot_id]) - n_left)
                slots[slot_id] = slots[slot_id][:n_left]
        ledger.check()
        assert ledger.n_used == len({cell for cells in slots for cell in cells})
        for one, cells in enumerate(slots):
            others = {cell for two, more in enumerate(slots) if two != one for cell in more}
            assert ledger.n_alone(one) == len(set(cells) - others)
        inside, outside = {*slots[0], *slots[1]}, {*slots[2], *slots[3]}
        assert ledger.n_only_in([0, 1]) == len(inside - outside)
        assert ledger.n_also_outside([0, 1], 0, n) == len(set(slots[0][:n]) & outside)
