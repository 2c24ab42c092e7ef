"""The edits of a slot's memory.

A recurrent state knows nothing of single inputs: what would take back some of them spoils it,
unless a checkpoint is restored before the edits end.
"""

from bisect import bisect_left

from runnerd.core.batch import Limits
from runnerd.engine.reference.cache import Memory
from runnerd.engine.reference.checkpoints import Checkpoints
from runnerd.engine.reference.ledger import Held


class Editor:
    """Carries out edits; whatever makes no sense is an AssertionError."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self.checkpoints = Checkpoints(memory)
        self._memory = memory
        self._can_rewind = limits.can_rewind
        self._has_attention = limits.has_attention
        self._spoiled: dict[int, str] = {}

    def remove(self, slot_id: int, p0: int, p1: int | None) -> None:
        """Forget the positions [p0, p1) of a slot."""
        held = self._memory.ledger.slot(slot_id)
        cells = self._memory.ledger.cells(slot_id, p0, p1)
        n_removed, n_held = cells.stop - cells.start, len(held.positions)
        is_part = 0 < n_removed < n_held
        assert self._can_rewind or not is_part, (
            f"slot {slot_id}: {n_removed} of {n_held} inputs cannot be taken back"
        )
        self._cut(slot_id, cells)
        if not held.positions:
            self._memory.states[:, slot_id] = 0.0
            self._spoiled.pop(slot_id, None)

    def shift(self, slot_id: int, p0: int, p1: int | None, delta: int) -> None:
        """Move the positions [p0, p1) of a slot."""
        memory = self._memory
        cells = memory.ledger.cells(slot_id, p0, p1)
        memory.ledger.shift(slot_id, cells, delta)
        memory.turned[:, slot_id, :, cells] = memory.rotation.turn(
            memory.keys[:, slot_id, :, cells], memory.ledger.slots[slot_id].positions[cells]
        )

    def copy(self, from_slot_id: int, slot_id: int, n_pos: int) -> None:
        """Let an empty slot hold the first `n_pos` positions of another."""
        memory = self._memory
        assert from_slot_id not in self._spoiled, self._spoiled[from_slot_id]
        n_copied = memory.ledger.copy(from_slot_id, slot_id, n_pos)
        for array in memory.arrays:
            array[:, slot_id, :, :n_copied] = array[:, from_slot_id, :, :n_copied]
        memory.floors[slot_id] = min(memory.floors[from_slot_id], n_pos)
        memory.states[:, slot_id] = memory.states[:, from_slot_id]
        n_past = memory.ledger.slots[from_slot_id].n_past
        if not self._can_rewind and n_pos != n_past:
            self._spoiled[slot_id] = (
                f"slot {slot_id}: a copy of {n_pos} of slot {from_slot_id}'s {n_past} positions"
                " takes a restore"
            )

    def save(self, checkpoint_id: int, slot_id: int) -> None:
        """Keep a slot's state."""
        assert slot_id not in self._spoiled, self._spoiled[slot_id]
        self.checkpoints.save(checkpoint_id, slot_id)

    def restore(self, checkpoint_id: int, slot_id: int, n_pos: int) -> None:
        """Put a slot back to `n_pos`, or an empty one where there is no attention."""
        if not self._has_attention and not self._memory.ledger.slot(slot_id).positions:
            self._memory.ledger.put(slot_id, *self.checkpoints.inputs(checkpoint_id))
        self._cut(slot_id, slice(self._memory.ledger.first_cells(slot_id, n_pos), None))
        self.checkpoints.restore(checkpoint_id, slot_id, n_pos)
        self._spoiled.pop(slot_id, None)

    def end(self) -> None:
        """Assert that no slot is left spoiled."""
        assert not self._spoiled, "; ".join(self._spoiled.values())

    def oldest(self) -> tuple[int, ...]:
        """Return the first position of each slot that the sliding layers hold, -1 if empty.

        If they hold none of the positions that a slot has, it is the next one.
        """
        memory = self._memory
        return tuple(map(_oldest, memory.ledger.slots, memory.floors))

    def _cut(self, slot_id: int, cells: slice) -> None:
        memory = self._memory
        held = memory.ledger.slots[slot_id]
        cells = slice(*cells.indices(len(held.positions)))
        rest = slice(cells.stop, len(held.positions))
        n_rest = rest.stop - rest.start
        if n_rest:
            for array in memory.arrays:
                slot = array[:, slot_id]
                slot[:, :, cells.start : cells.start + n_rest] = slot[:, :, rest]
        memory.ledger.remove(slot_id, cells)
        memory.floors[slot_id] = min(memory.floors[slot_id], held.n_past)


def _oldest(held: Held, floor: int) -> int:
    if not held.positions:
        return -1
    index = bisect_left(held.positions, floor)
    return held.positions[index] if index < len(held.positions) else held.n_past
