"""The ledger of cells."""

import pytest

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
