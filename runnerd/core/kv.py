"""The ledger of KV-cache cells: which slots hold them, and how many are left.

Cells in the ledger equal cells in use, and a cell that several slots hold counts once. Slots
come to share cells only by one taking over the beginning of another. So what two slots share is
a beginning of both, and what a slot holds alone is its end.
"""

from collections.abc import Collection, Container
from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive cells held by the same slots, which are in ascending order."""

    n_cells: int
    owners: list[int]


class KVLedger:
    """Counts cells; knows nothing of what they hold."""

    def __init__(self, n_slots: int, n_cells: int) -> None:
        self.n_cells = n_cells
        self.n_used = 0
        self._held = [0] * n_slots
        self._runs: list[list[Run]] = [[] for _ in range(n_slots)]

    @property
    def n_free(self) -> int:
        """Cells that nobody holds."""
        return self.n_cells - self.n_used

    def held(self, slot_id: int) -> int:
        """Cells that a slot holds, alone or with others."""
        return self._held[slot_id]

    def n_alone(self, slot_id: int) -> int:
        """Cells that a slot holds alone: so many at its end."""
        return sum(run.n_cells for run in self._runs[slot_id] if len(run.owners) == 1)

    def sharers(self, slot_id: int, n_from: int) -> list[int]:
        """Return the other slots that hold any of a slot's cells after its first `n_from`."""
        n_before = 0
        for run in self._runs[slot_id]:
            n_before += run.n_cells
            if n_before > n_from:  # whoever holds a later run holds this one too
                return [owner for owner in run.owners if owner != slot_id]
        return []

    def n_only_in(self, slot_ids: Collection[int]) -> int:
        """Cells that these slots hold and no other does, each counted once."""
        return sum(
            run.n_cells
            for slot_id in slot_ids
            for run in self._runs[slot_id]
            if run.owners[0] == slot_id and all(owner in slot_ids for owner in run.owners)
        )

    def n_also_outside(self, slot_ids: Container[int], slot_id: int, n_most: int) -> int:
        """Cells among a slot's first `n_most` that a slot holds which is none of these."""
        n_counted, n_left = 0, n_most
        for run in self._runs[slot_id]:
            if n_left <= 0 or all(owner in slot_ids for owner in run.owners):
                break  # whoever holds a later run holds this one too
            n_counted += min(run.n_cells, n_left)
            n_left -= run.n_cells
        return n_counted

    def take(self, slot_id: int, n_cells: int) -> None:
        """Count cells that a slot has filled."""
        n_used = self.n_used + n_cells
        assert self.n_used <= n_used <= self.n_cells, f"{n_cells} cells taken, {self.n_free} free"
        runs = self._runs[slot_id]
        if runs and len((run := runs[-1]).owners) == 1:
            run.n_cells += n_cells
        elif n_cells:
            runs.append(Run(n_cells, [slot_id]))
        self._held[slot_id] += n_cells
        self.n_used = n_used

    def share(self, from_slot_id: int, slot_id: int, n_cells: int) -> None:
        """Let an empty slot hold the first cells of another too."""
        assert self._held[slot_id] == 0, f"slot {slot_id} is not empty"
        assert n_cells <= self._held[from_slot_id], f"{n_cells} of {self._held[from_slot_id]}"
        n_left = n_cells
        for run in list(self._runs[from_slot_id]):
            if n_left == 0:
                break
            if run.n_cells > n_left:
                self._split(run, n_left)
            n_left -= run.n_cells
            run.owners = sorted((*run.owners, slot_id))
            self._runs[slot_id].append(run)
        self._held[slot_id] = n_cells

    def give_back(self, slot_id: int, n_cells: int) -> None:
        """Count cells that a slot has emptied at its end; those of others stay in use."""
        assert 0 <= n_cells <= self._held[slot_id], f"{n_cells} of {self._held[slot_id]} returned"
        self._held[slot_id] -= n_cells
        runs, n_left = self._runs[slot_id], n_cells
        while n_left:
            run = runs[-1]
            if run.n_cells > n_left:
                self._split(run, run.n_cells - n_left)
                run = runs[-1]
            runs.pop()
            n_left -= run.n_cells
            run.owners.remove(slot_id)
            if not run.owners:
                self.n_used -= run.n_cells
            else:
                self._join(run)

    def _split(self, run: Run, n_cells: int) -> None:
        """Leave so many cells in a run; the rest becomes one of its own behind it."""
        rest = Run(run.n_cells - n_cells, list(run.owners))
        run.n_cells = n_cells
        for owner in run.owners:
            runs = self._runs[owner]
            runs.insert(runs.index(run) + 1, rest)

    def _join(self, run: Run) -> None:
        """Make one run of it and the next, where they now have the same owners."""
        runs = self._runs[run.owners[0]]
        at = runs.index(run)
        for first, second in ((at, at + 1), (at - 1, at)):
            if first < 0 or second >= len(runs) or runs[first].owners != runs[second].owners:
                continue
            kept, gone = runs[first], runs[second]
            kept.n_cells += gone.n_cells
            for owner in gone.owners:
                self._runs[owner].remove(gone)

    def check(self) -> None:
        """Assert that the counts add up, and that what is shared is a beginning."""
        runs = {id(run): run for held in self._runs for run in held}
        n_used = sum(run.n_cells for run in runs.values())
        assert self.n_used == n_used, f"{self.n_used} used, slots hold {n_used}"
        assert self.n_used <= self.n_cells, f"{self.n_used} of {self.n_cells} cells"
        for slot_id, held in enumerate(self._runs):
            assert self._held[slot_id] == sum(run.n_cells for run in held), f"slot {slot_id}"
            assert all(run.n_cells > 0 for run in held), f"slot {slot_id}: a run of no cells"
            owners = [run.owners for run in held]
            assert all(slot_id in o and o == sorted(set(o)) for o in owners), f"slot {slot_id}"
            for earlier, later in pairwise(owners):
                assert set(later) < set(earlier), f"slot {slot_id}: {earlier}, then {later}"
