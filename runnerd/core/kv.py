"""The ledger of KV-cache cells: how many each slot holds, and how many are left.

Cells in the ledger equal cells in use. Nothing is shared between slots, so a slot's cells
are the inputs it has cached, and the sum over slots never exceeds `n_cells`.
"""


class KVLedger:
    """Counts cells; knows nothing of what they hold."""

    def __init__(self, n_slots: int, n_cells: int) -> None:
        self.n_cells = n_cells
        self.n_used = 0
        self._held = [0] * n_slots

    @property
    def n_free(self) -> int:
        """Cells that nobody holds."""
        return self.n_cells - self.n_used

    def held(self, slot_id: int) -> int:
        """Cells that a slot holds."""
        return self._held[slot_id]

    def take(self, slot_id: int, n_cells: int) -> None:
        """Count cells that a slot has filled."""
        assert 0 <= n_cells <= self.n_free, f"{n_cells} cells taken, {self.n_free} free"
        self._held[slot_id] += n_cells
        self.n_used += n_cells

    def give_back(self, slot_id: int, n_cells: int) -> None:
        """Count cells that a slot has emptied."""
        assert 0 <= n_cells <= self._held[slot_id], f"{n_cells} of {self._held[slot_id]} returned"
        self._held[slot_id] -= n_cells
        self.n_used -= n_cells

    def check(self) -> None:
        """Assert that the counts add up."""
        assert all(n >= 0 for n in self._held), f"negative count: {self._held}"
        assert self.n_used == sum(self._held), f"{self.n_used} used, slots hold {self._held}"
        assert self.n_used <= self.n_cells, f"{self.n_used} of {self.n_cells} cells"
