"""Slow and obvious counterparts of the core, to compare it with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runnerd.core.batch import Batch, BatchKind, Edit, KVRemove, KVShift, Limits, Span
from runnerd.core.prompt import Prompt

Cell = tuple[int, int]  # position, input


@dataclass(frozen=True, slots=True)
class Row:
    """What a media input is: a row of a medium of so many rows, at so many positions."""

    row: int
    n_rows: int
    n_pos: int
    one_pass: bool


Rows = Mapping[int, Row]


def media_rows(prompt: Prompt) -> dict[int, Row]:
    """Return what the media inputs of a prompt are."""
    return {
        prompt.inputs[group.start + row]: Row(row, group.n_inputs, group.n_pos, group.one_pass)
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


class NaiveCache:
    """Cells of every slot, in order, as an engine sees them through edits and spans."""

    def __init__(self, limits: Limits) -> None:
        self.slots: list[list[Cell]] = [[] for _ in range(limits.n_slots)]
        self._limits = limits

    @property
    def n_cells(self) -> int:
        return sum(len(cells) for cells in self.slots)

    def edit(self, edits: Iterable[Edit]) -> None:
        """Carry out edits; a removal finds something to remove."""
        for edit in edits:
            match edit:
                case KVRemove(slot_id, p0, p1):
                    stop = float("inf") if p1 is None else p1
                    cells = self.slots[slot_id]
                    kept = [cell for cell in cells if not p0 <= cell[0] < stop]
                    assert len(kept) < len(cells), f"nothing there: {edit}"
                    self.slots[slot_id] = kept
                case KVShift(slot_id, p0, p1, delta):
                    assert self._limits.can_shift
                    stop = float("inf") if p1 is None else p1
                    self.slots[slot_id] = [
                        (pos + delta if p0 <= pos < stop else pos, value)
                        for pos, value in self.slots[slot_id]
                    ]
                case _:
                    pass  # samplers have no cells

    def run(self, batch: Batch, rows: Rows) -> None:
        """Store the rows of a batch behind what is there."""
        for span in batch.spans:
            cells = self.slots[span.slot_id]
            cells += _span_cells(span, batch.kind, rows)
            assert cells == cells_of([value for _, value in cells], rows), "not contiguous"
            assert len(cells) <= self._limits.n_ctx, "slot over n_ctx"
        assert self.n_cells <= self._limits.n_cells, "more cells than there are"


def _span_cells(span: Span, kind: BatchKind, rows: Rows) -> list[Cell]:
    if kind is BatchKind.TOKENS:
        assert all(value >= 0 for value in span.inputs), "media among tokens"
        return [(span.pos + n, value) for n, value in enumerate(span.inputs)]
    cells: list[Cell] = []
    for row, value in enumerate(span.inputs, span.row0):
        medium = rows[value]
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
