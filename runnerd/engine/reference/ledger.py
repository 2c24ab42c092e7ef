"""Which cells each slot holds, and where; a broken rule is an AssertionError that says which.

A slot's cells lie in the order they were stored, which is the order of their positions. In a
unified cache slots can own a cell together; it is in use as long as one of them does.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from runnerd.core.batch import Batch, BatchKind, Limits
from runnerd.engine.reference.rules import check_rows, positions_of
from runnerd.engine.reference.tokenizer import N_VOCAB
from runnerd.errors import NoKVSlot


@dataclass(frozen=True, slots=True)
class Placement:
    """A batch's rows, one after the other, and the first cell of each span in its slot."""

    inputs: list[int]
    positions: list[int]
    starts: list[int]


@dataclass(slots=True)
class Held:
    """What a slot holds, cell by cell: the input, its position, and which cell it is."""

    inputs: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    cell_ids: list[int] = field(default_factory=list)

    @property
    def n_past(self) -> int:
        """The position that comes next."""
        return self.positions[-1] + 1 if self.positions else 0


class Ledger:
    """The cells of every slot, by `slot_id`, and how many are in use."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.slots = [Held() for _ in range(limits.n_slots)]
        self.n_used = 0
        self._n_made = 0
        self._n_more_owners: Counter[int] = Counter()  # of the cells that have more than one

    def slot(self, slot_id: int) -> Held:
        """Return what a slot holds."""
        assert 0 <= slot_id < self._limits.n_slots, f"slot {slot_id} of {self._limits.n_slots}"
        return self.slots[slot_id]

    def cells(self, slot_id: int, p0: int, p1: int | None) -> slice:
        """Return the cells that hold the positions [p0, p1)."""
        stored = self.slot(slot_id).positions
        assert 0 <= p0 <= (p0 if p1 is None else p1), f"[{p0}, {p1}) is no range of positions"
        stop = len(stored) if p1 is None else bisect_left(stored, p1)
        return slice(bisect_left(stored, p0), stop)

    def first_cells(self, slot_id: int, n_pos: int) -> int:
        """Return how many cells hold the first `n_pos` positions of a slot, all of which it has."""
        stop = bisect_left(self.slot(slot_id).positions, n_pos)
        n_held = self.slots[slot_id].positions[stop - 1] + 1 if stop else 0
        assert n_held == n_pos, f"slot {slot_id}: {n_held} of the first {n_pos} positions"
        return stop

    def find_room(self, batch: Batch) -> None:
        """Check a batch as a whole.

        Raises:
            NoKVSlot: there are too few cells over all slots.
        """
        n_rows, n_cells = check_rows(batch, self._limits), self._limits.n_cells
        if self.n_used + n_rows > n_cells:
            raise NoKVSlot(f"{self.n_used} of {n_cells} cells in use, no room for {n_rows} more")

    def place(self, batch: Batch) -> Placement:
        """Give rows, for which there is room, the next cells of their slots."""
        kind, n_ctx, n_made = batch.kind, self._limits.n_ctx, self._n_made
        inputs: list[int] = []
        positions: list[int] = []
        starts: list[int] = []
        for span in batch.spans:
            held, rows = self.slot(span.slot_id), span.inputs
            assert rows, f"sequence {span.seq_id}: a span without rows"
            stored = held.positions
            starts.append(len(stored))
            taken = positions_of(kind, span, stored[-1] + 1 if stored else 0)
            inputs += rows
            positions += taken
            held.inputs += rows
            stored += taken
            held.cell_ids += range(n_made, n_made + len(rows))
            n_made += len(rows)
            assert len(stored) <= n_ctx > stored[-1], (
                f"slot {span.slot_id}: {len(stored)} inputs up to position {stored[-1]},"
                f" n_ctx is {n_ctx}"
            )
        if kind is BatchKind.TOKENS:
            assert min(inputs) >= 0, f"token {min(inputs)}"
            assert max(inputs) < N_VOCAB, f"token {max(inputs)} of {N_VOCAB}"
        self._n_made = n_made
        self.n_used += len(inputs)
        return Placement(inputs, positions, starts)

    def remove(self, slot_id: int, cells: slice) -> None:
        """Forget cells; those after them move up."""
        held = self.slots[slot_id]
        given_up = held.cell_ids[cells]
        others = [cell_id for cell_id in given_up if cell_id in self._n_more_owners]
        self._n_more_owners.subtract(others)
        for cell_id in others:
            if not self._n_more_owners[cell_id]:
                del self._n_more_owners[cell_id]
        self.n_used -= len(given_up) - len(others)
        del held.inputs[cells], held.positions[cells], held.cell_ids[cells]

    def shift(self, slot_id: int, cells: slice, delta: int) -> None:
        """Move the positions of cells, past none that stay."""
        assert self._limits.can_shift, "the cache cannot shift"
        held = self.slots[slot_id]
        n_shared = sum(cell_id in self._n_more_owners for cell_id in held.cell_ids[cells])
        assert not n_shared, f"slot {slot_id}: {n_shared} cells to shift are others' as well"
        stored = held.positions
        moved = [position + delta for position in stored[cells]]
        if moved:
            before = stored[cells.start - 1] if cells.start else -1
            after = stored[cells.stop] if cells.stop < len(stored) else self._limits.n_ctx
            assert before < moved[0] <= moved[-1] < after, (
                f"slot {slot_id}: a shift by {delta} moves {moved[0]} to {moved[-1]}"
                f" out of ({before}, {after})"
            )
        stored[cells] = moved

    def copy(self, from_slot_id: int, slot_id: int, n_pos: int) -> int:
        """Let an empty slot hold the first positions of another; return how many cells."""
        source, held = self.slot(from_slot_id), self.slot(slot_id)
        assert not held.positions, f"slot {slot_id} holds {len(held.positions)} cells already"
        assert n_pos > 0, f"slot {slot_id}: a copy of nothing"
        n_copied = self.first_cells(from_slot_id, n_pos)
        held.inputs[:] = source.inputs[:n_copied]
        held.positions[:] = source.positions[:n_copied]
        if self._limits.is_unified:
            held.cell_ids[:] = source.cell_ids[:n_copied]
            self._n_more_owners.update(held.cell_ids)
        else:
            held.cell_ids[:] = self._new_cells(n_copied)
            self.n_used += n_copied
        return n_copied

    def put(self, slot_id: int, inputs: list[int], positions: list[int]) -> None:
        """Let an empty slot hold inputs at these positions."""
        held = self.slot(slot_id)
        held.inputs[:], held.positions[:] = inputs, positions
        held.cell_ids[:] = self._new_cells(len(inputs))
        self.n_used += len(inputs)

    def _new_cells(self, n_cells: int) -> range:
        start = self._n_made
        self._n_made += n_cells
        return range(start, self._n_made)
