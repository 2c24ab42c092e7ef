"""Which positions each slot holds, and whether a batch keeps the rules.

A slot's cells lie in the order they were stored, which is the order of their positions.
llama.cpp aborts the process on many a broken rule; here it is an AssertionError that says which.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from runnerd.core.batch import Batch, BatchKind, Limits, Span
from runnerd.core.prompt import media_key
from runnerd.engine.reference.media import Medium
from runnerd.engine.reference.tokenizer import N_VOCAB
from runnerd.errors import NoKVSlot


@dataclass(frozen=True, slots=True)
class Placement:
    """A batch's rows, one after the other, and the first cell of each span in its slot."""

    inputs: list[int]
    positions: list[int]
    starts: list[int]


class Ledger:
    """The cells of every slot: `positions[slot_id]` are those it holds, in order."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.positions: list[list[int]] = [[] for _ in range(limits.n_slots)]
        self.n_used = 0

    def cells(self, slot_id: int, p0: int, p1: int | None) -> slice:
        """Return the cells that hold the positions [p0, p1)."""
        assert 0 <= slot_id < self._limits.n_slots, f"slot {slot_id} of {self._limits.n_slots}"
        assert 0 <= p0 <= (p0 if p1 is None else p1), f"[{p0}, {p1}) is no range of positions"
        stored = self.positions[slot_id]
        stop = len(stored) if p1 is None else bisect_left(stored, p1)
        return slice(bisect_left(stored, p0), stop)

    def place(self, batch: Batch) -> Placement:
        """Give a batch's rows the next cells of their slots.

        Raises:
            NoKVSlot: there are too few cells over all slots; nothing has changed.
        """
        limits = self._limits
        placement = Placement([], [], [])
        n_rows = self._check_rows(batch)
        if self.n_used + n_rows > limits.n_cells:
            raise NoKVSlot(
                f"{self.n_used} of {limits.n_cells} cells in use, no room for {n_rows} more"
            )
        for span in batch.spans:
            assert 0 <= span.slot_id < limits.n_slots, f"slot {span.slot_id} of {limits.n_slots}"
            assert span.inputs, f"sequence {span.seq_id}: a span without rows"
            stored = self.positions[span.slot_id]
            taken = _positions(batch.kind, span, stored[-1] + 1 if stored else 0)
            placement.inputs.extend(span.inputs)
            placement.positions.extend(taken)
            placement.starts.append(len(stored))
            stored.extend(taken)
            assert len(stored) <= limits.n_ctx > taken[-1], (
                f"slot {span.slot_id}: {len(stored)} inputs up to position {taken[-1]},"
                f" n_ctx is {limits.n_ctx}"
            )
        if batch.kind is BatchKind.TOKENS:
            assert min(placement.inputs) >= 0, f"token {min(placement.inputs)}"
            assert max(placement.inputs) < N_VOCAB, f"token {max(placement.inputs)} of {N_VOCAB}"
        self.n_used += n_rows
        return placement

    def remove(self, slot_id: int, cells: slice) -> None:
        """Forget cells; those after them move up."""
        del self.positions[slot_id][cells]
        self.n_used -= cells.stop - cells.start

    def shift(self, slot_id: int, cells: slice, delta: int) -> None:
        """Move the positions of cells, past none that stay."""
        assert self._limits.can_shift, "the cache cannot shift"
        stored = self.positions[slot_id]
        moved = [position + delta for position in stored[cells]]
        if moved:
            before = stored[cells.start - 1] if cells.start else -1
            after = stored[cells.stop] if cells.stop < len(stored) else self._limits.n_ctx
            assert before < moved[0] <= moved[-1] < after, (
                f"slot {slot_id}: a shift by {delta} moves {moved[0]} to {moved[-1]}"
                f" out of ({before}, {after})"
            )
        stored[cells] = moved

    def _check_rows(self, batch: Batch) -> int:
        n_rows, limits = batch.n_rows, self._limits
        assert 0 < n_rows <= limits.n_batch, f"{n_rows} rows, n_batch is {limits.n_batch}"
        if batch.kind is BatchKind.MEDIA_NON_CAUSAL:
            assert n_rows <= limits.n_ubatch, f"{n_rows} rows, n_ubatch is {limits.n_ubatch}"
            slot_ids = [span.slot_id for span in batch.spans]
            # Without a causal mask the rows of one slot all see each other.
            assert len(set(slot_ids)) == len(slot_ids), f"slots {slot_ids}: one image each"
        return n_rows


def _positions(kind: BatchKind, span: Span, n_past: int) -> Sequence[int]:
    """Return the positions of a span's rows.

    A medium's span has the position of the medium's row 0; its rows may share positions.
    """
    if kind is BatchKind.TOKENS:
        assert span.pos == n_past, f"slot {span.slot_id}: row at {span.pos}, next is {n_past}"
        return range(n_past, n_past + len(span.inputs))
    medium = Medium.of_id(span.media_id)
    rows = range(span.row0, span.row0 + len(span.inputs))
    keys = tuple(media_key(span.media_id, row) for row in rows)
    assert span.inputs == keys, f"medium {span.media_id}: the inputs are not its rows {rows}"
    assert 0 <= rows.start < rows.stop <= medium.n_rows, f"{rows} of {medium.n_rows} rows"
    assert medium.one_pass == (kind is BatchKind.MEDIA_NON_CAUSAL), f"{medium} in a batch {kind}"
    if medium.one_pass:
        assert len(rows) == medium.n_rows, f"{rows} of {medium.n_rows} rows that go together"
    follows = span.pos if span.row0 == 0 else span.pos + medium.offset(span.row0 - 1) + 1
    assert follows == n_past, f"slot {span.slot_id}: row after {follows}, next is {n_past}"
    return [span.pos + medium.offset(row) for row in rows]
