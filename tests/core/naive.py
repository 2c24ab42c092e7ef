"""Slow and obvious counterparts of the core, to compare it with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from runnerd.core.batch import (
    Batch,
    BatchKind,
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    Edit,
    KVCopy,
    KVRemove,
    KVShift,
    Limits,
    SamplerClose,
    SamplerOpen,
    Span,
)
from runnerd.core.prompt import Prompt

Cell = tuple[int, int]  # position, input


@dataclass(frozen=True, slots=True)
class Row:
    """What a media input is: a row of a group of so many rows, at so many positions.

    The group begins at the row `row0` of its medium.
    """

    row: int
    n_rows: int
    n_pos: int
    one_pass: bool
    row0: int = 0


Rows = Mapping[int, Row]


def media_rows(prompt: Prompt) -> dict[int, Row]:
    """Return what the media inputs of a prompt are."""
    return {
        prompt.inputs[group.start + row]: Row(
            row, group.n_inputs, group.n_pos, group.one_pass, group.row0
        )
        for group in prompt.groups
        for row in range(group.n_inputs)
    }


def cells_of(inputs: Iterable[int], rows: Rows) -> list[Cell]:
    """Return the cells that a cache holds for these inputs; no medium lacks its beginning."""
    cells: list[Cell] = []
    at, row = 0, 0
    for value in inputs:
        if value >= 0:
            assert row == 0, "a medium was cut"
            cells.append((at, value))
            at += 1
            continue
        medium = rows[value]
        assert medium.row == row, "a medium was cut"
        cells.append((at + row * medium.n_pos // medium.n_rows, value))
        row += 1
        if row == medium.n_rows:
            at, row = at + medium.n_pos, 0
    return cells


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: of which cells, and what the window and the state held then."""

    cells: tuple[Cell, ...]
    sliding: tuple[Cell, ...]
    state: tuple[Cell, ...]


class NaiveCache:
    """Cells of every slot, in order, as an engine sees them through edits and spans.

    `sliding` is what layers with a window hold of a slot, `state` what a recurrent one has seen.
    Both are kept whatever the limits, and looked at where these say so. A window keeps no more
    than it must, and forgets for rows even if these are taken back. `is_shifting`: cells are to
    move when the next batch begins.
    """

    def __init__(self, limits: Limits) -> None:
        self.slots: list[list[Cell]] = [[] for _ in range(limits.n_slots)]
        self.sliding: list[list[Cell]] = [[] for _ in range(limits.n_slots)]
        self.state: list[list[Cell]] = [[] for _ in range(limits.n_slots)]
        self.checkpoints: dict[int, Saved] = {}
        self._ids: list[list[int]] = [[] for _ in range(limits.n_slots)]
        self._seen: dict[int, int] = {}
        self._limits = limits
        self._n_made = 0
        self._spoiled: set[int] = set()
        self.is_shifting = False

    @property
    def n_cells(self) -> int:
        """Cells in use; one that several slots share counts once."""
        return len({cell_id for ids in self._ids for cell_id in ids})

    def oldest(self) -> tuple[int, ...]:
        """Return `StepResult.oldest`."""
        return tuple(sliding[0][0] if sliding else -1 for sliding in self.sliding)

    def saved(self, edits: Iterable[Edit]) -> tuple[tuple[int, int], ...]:
        """Return `StepResult.saved` of a step with these edits: a byte per cell."""
        return tuple(
            (edit.checkpoint_id, len(self.checkpoints[edit.checkpoint_id].cells))
            for edit in edits
            if isinstance(edit, CheckpointSave)
        )

    def edit(self, edits: Iterable[Edit]) -> None:
        """Carry out edits; a removal finds something to remove, a checkpoint is complete.

        Of slots that hold what is no number nothing is kept.
        """
        to_restore: set[int] = set()
        for edit in edits:
            match edit:
                case KVRemove(slot_id, p0, p1):
                    self._remove(slot_id, p0, p1)
                    if not self.slots[slot_id]:
                        self._spoiled.discard(slot_id)
                case KVShift(slot_id, p0, p1, delta):
                    self._shift(slot_id, p0, p1, delta)
                    self.is_shifting = True
                case KVCopy(from_slot_id, slot_id, n_pos):
                    assert from_slot_id not in self._spoiled
                    if not self._copy(from_slot_id, slot_id, n_pos):
                        to_restore.add(slot_id)
                case CheckpointSave(checkpoint_id, slot_id):
                    assert checkpoint_id not in self.checkpoints
                    assert slot_id not in self._spoiled
                    self.assert_whole(slot_id)
                    self.checkpoints[checkpoint_id] = Saved(
                        tuple(self.slots[slot_id]),
                        tuple(self.sliding[slot_id]),
                        tuple(self.state[slot_id]),
                    )
                case CheckpointRestore(checkpoint_id, slot_id, n_pos):
                    self._restore(slot_id, self.checkpoints[checkpoint_id], n_pos)
                    to_restore.discard(slot_id)
                case CheckpointDrop(checkpoint_id):
                    del self.checkpoints[checkpoint_id]
                case SamplerOpen() | SamplerClose():
                    pass  # they have no cells
                case _:
                    assert_never(edit)
        assert not to_restore, "half a state was copied"
        assert not self._spoiled, "what is no number is still there"

    def spoil(self, slot_ids: Iterable[int]) -> None:
        """Let slots hold what is no number, as a sample has told, until they are emptied."""
        self._spoiled.update(slot_id for slot_id in slot_ids if self.slots[slot_id])

    def _remove(self, slot_id: int, p0: int, p1: int | None) -> None:
        stop = float("inf") if p1 is None else p1
        cells = self.slots[slot_id]
        kept = [n for n, (pos, _) in enumerate(cells) if not p0 <= pos < stop]
        assert len(kept) < len(cells), f"slot {slot_id}: nothing in [{p0}, {p1})"
        assert not kept or self._limits.can_rewind, "a state cannot go back"
        gone = {cells[n] for n in range(len(cells))} - {cells[n] for n in kept}
        self.slots[slot_id] = [cells[n] for n in kept]
        self._ids[slot_id] = [self._ids[slot_id][n] for n in kept]
        self.sliding[slot_id] = [cell for cell in self.sliding[slot_id] if cell not in gone]
        self.state[slot_id] = list(self.slots[slot_id])

    def _shift(self, slot_id: int, p0: int, p1: int | None, delta: int) -> None:
        assert self._limits.can_shift
        assert not self._limits.needs_checkpoints
        stop = float("inf") if p1 is None else p1
        cells, ids = self.slots[slot_id], self._ids[slot_id]
        others = {cell_id for n, held in enumerate(self._ids) if n != slot_id for cell_id in held}
        for n, (pos, value) in enumerate(cells):
            if p0 <= pos < stop:
                assert ids[n] not in others, "a shared cell was moved"
                cells[n] = pos + delta, value
        self.sliding[slot_id] = self.state[slot_id] = list(cells)

    def _copy(self, from_slot_id: int, slot_id: int, n_pos: int) -> bool:
        """Copy a beginning; return whether its state is complete, or needs a restore."""
        assert not self.slots[slot_id], "a copy to a slot that is not empty"
        cells = [cell for cell in self.slots[from_slot_id] if cell[0] < n_pos]
        assert cells, "a copy of nothing"
        self.slots[slot_id] = cells
        if self._limits.is_unified:
            self._ids[slot_id] = self._ids[from_slot_id][: len(cells)]
        else:
            ids = self._ids[from_slot_id][: len(cells)]
            self._ids[slot_id] = [self._new_cell(self._seen[cell_id]) for cell_id in ids]
        sliding = self.sliding[from_slot_id]
        self.sliding[slot_id] = [cell for cell in sliding if cell[0] < n_pos]
        is_all = len(cells) == len(self.slots[from_slot_id])
        self.state[slot_id] = list(cells)
        assert self.n_cells <= self._limits.n_cells, "more cells than there are"
        return is_all or self._limits.can_rewind

    def _restore(self, slot_id: int, saved: Saved, n_pos: int) -> None:
        n = len(saved.cells)
        if not self._limits.has_attention and not self.slots[slot_id]:
            self._store(slot_id, list(saved.cells))
        assert tuple(self.slots[slot_id][:n]) == saved.cells, "a checkpoint of something else"
        assert all(pos >= n_pos for pos, _ in self.slots[slot_id][n:])
        assert saved.cells[-1][0] < n_pos
        del self.slots[slot_id][n:], self._ids[slot_id][n:]
        self.sliding[slot_id] = list(saved.sliding)
        self.state[slot_id] = list(saved.state)

    def assert_whole(self, slot_id: int) -> None:
        """Assert that nothing is missing that the next row looks back on."""
        cells = self.slots[slot_id]
        if not self._limits.can_rewind:
            assert self.state[slot_id] == cells, "the state has seen something else"
        if self._limits.window and cells:
            first = cells[-1][0] + 1 - self._limits.window
            needed = [cell for cell in cells if cell[0] >= first]
            assert [cell for cell in self.sliding[slot_id] if cell[0] >= first] == needed

    def n_fresh(self, slot_id: int) -> int:
        """Return how many inputs at a slot's start are as their own evaluation left them.

        The others have seen something that is no longer before them.
        """
        seen = 0
        for n, (cell_id, (_, value)) in enumerate(
            zip(self._ids[slot_id], self.slots[slot_id], strict=True)
        ):
            seen = hash((seen, value))
            if self._seen[cell_id] != seen:
                return n
        return len(self.slots[slot_id])

    def _new_cell(self, seen: int) -> int:
        self._n_made += 1
        self._seen[self._n_made] = seen
        return self._n_made

    def run(self, batch: Batch, rows: Rows, n_stored: Sequence[int | None] | None = None) -> None:
        """Store the rows of a batch behind what is there; of an aborted one, only so many.

        None instead of a number: the slot holds nothing any more. What was shifted moves with
        the first batch after it, which must not be stopped.
        """
        assert n_stored is None or not self.is_shifting, "stopped while cells move"
        self.is_shifting = False
        for span in batch.spans:
            slot_id = span.slot_id
            self.assert_whole(slot_id)
            added = _span_cells(span, batch.kind, rows)
            self._store(slot_id, added)
            cells = self.slots[slot_id]
            assert cells == cells_of([value for _, value in cells], rows), "not contiguous"
            assert len(cells) <= self._limits.n_ctx, "slot over n_ctx"
            self.state[slot_id] = self.state[slot_id] + added
            self.sliding[slot_id] = self.sliding[slot_id] + added
            if self._limits.window:
                first = cells[-1][0] + 1 - self._limits.window
                self.sliding[slot_id] = [c for c in self.sliding[slot_id] if c[0] >= first]
        if n_stored is not None:
            for span, n in zip(reversed(batch.spans), reversed(n_stored), strict=True):
                n_gone = len(self.slots[span.slot_id]) if n is None else len(span.inputs) - n
                self._take_back(span.slot_id, n_gone)
        assert self.n_cells <= self._limits.n_cells, "more cells than there are"

    def _store(self, slot_id: int, added: list[Cell]) -> None:
        self.slots[slot_id] = self.slots[slot_id] + added
        ids = self._ids[slot_id] = list(self._ids[slot_id])
        for _, value in added:
            ids.append(self._new_cell(hash((self._seen[ids[-1]] if ids else 0, value))))

    def _take_back(self, slot_id: int, n_gone: int) -> None:
        n_left = len(self.slots[slot_id]) - n_gone
        gone = set(self.slots[slot_id][n_left:])
        del self.slots[slot_id][n_left:], self._ids[slot_id][n_left:]
        self.sliding[slot_id] = [cell for cell in self.sliding[slot_id] if cell not in gone]
        self.state[slot_id] = list(self.slots[slot_id])


def _span_cells(span: Span, kind: BatchKind, rows: Rows) -> list[Cell]:
    if kind is BatchKind.TOKENS:
        assert all(value >= 0 for value in span.inputs), "media among tokens"
        return [(span.pos + n, value) for n, value in enumerate(span.inputs)]
    cells: list[Cell] = []
    for n, value in enumerate(span.inputs):
        medium = rows[value]
        row = span.row0 + n - medium.row0
        assert medium.row == row, "wrong row of the medium"
        assert medium.one_pass == (kind is BatchKind.MEDIA_NON_CAUSAL), "wrong kind of batch"
        assert not medium.one_pass or len(span.inputs) == medium.n_rows, "group was split"
        cells.append((span.pos + row * medium.n_pos // medium.n_rows, value))
    return cells


def text_before_stop(data: bytes, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before the stop string that is complete first, the longest of several."""
    text = data.decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None
