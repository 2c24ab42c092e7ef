"""The KV cache and attention over it.

Keys are kept as computed and also turned by their position (rotary embedding). A shift
turns the kept ones anew, so a shifted key is exactly that of its new position, however often it
moved. What a shift cannot undo: keys and values above the first layer were computed when the
dropped inputs could be seen, and stay so. With one layer a shifted cache equals a new one.
"""

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Batch, BatchKind, Limits, Span
from runnerd.engine.memory import check_memory
from runnerd.engine.reference.ledger import Ledger, Placement
from runnerd.engine.reference.model import (
    ONE,
    Layer,
    Model,
    feed_forward,
    normalised,
    project,
    whole,
)
from runnerd.engine.reference.options import ReferenceOptions

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TURN = 1024.0  # unit of sines and cosines
STEPS = 16  # steps of attention scores, per factor e of weight
# Weight by distance from the best score; the last, for hidden cells and far ones, is nothing.
FALL = whole(np.exp(-np.arange(16 * STEPS + 1) / STEPS) * 2**16)
FALL[-1] = 0.0


class KVCache:
    """Keys and values of every slot, `n_ctx` cells each.

    Raises:
        OutOfMemory: main memory cannot hold them.
    """

    def __init__(self, model: Model, options: ReferenceOptions, limits: Limits) -> None:
        self.ledger = Ledger(limits)
        self._model = model
        self._heads = options.heads
        self._window = options.window
        head_dim = options.dim // options.heads
        # Three arrays of every slot; sines and cosines, and as much again while they are made.
        n_values = 3 * options.layers * limits.n_slots * options.dim + 2 * head_dim
        bytes_per_ctx = n_values * np.dtype(np.float64).itemsize
        check_memory(
            limits.n_slots,
            limits.n_ctx,
            kv_bytes=bytes_per_ctx * limits.n_ctx,
            bytes_per_ctx=bytes_per_ctx,
        )
        shape = (options.layers, limits.n_slots, options.heads, limits.n_ctx, head_dim)
        self._keys, self._turned, self._values = (np.zeros(shape) for _ in range(3))
        angles = np.outer(
            np.arange(limits.n_ctx), 100.0 ** -np.linspace(0, 1, head_dim // 2, endpoint=False)
        )
        self._cos, self._sin = whole(np.cos(angles) * TURN), whole(np.sin(angles) * TURN)

    def remove(self, slot_id: int, p0: int, p1: int | None) -> None:
        """Forget the positions [p0, p1) of a slot."""
        cells = self.ledger.cells(slot_id, p0, p1)
        rest = slice(cells.stop, len(self.ledger.positions[slot_id]))
        n_rest = rest.stop - rest.start
        for array in (self._keys, self._turned, self._values):
            slot = array[:, slot_id]
            slot[:, :, cells.start : cells.start + n_rest] = slot[:, :, rest]
        self.ledger.remove(slot_id, cells)

    def shift(self, slot_id: int, p0: int, p1: int | None, delta: int) -> None:
        """Move the positions [p0, p1) of a slot."""
        cells = self.ledger.cells(slot_id, p0, p1)
        self.ledger.shift(slot_id, cells, delta)
        self._turned[:, slot_id, :, cells] = self._turn(
            self._keys[:, slot_id, :, cells], self.ledger.positions[slot_id][cells]
        )

    def forward(self, batch: Batch, placement: Placement, rows: Floats) -> Floats:
        """Run embedded rows through the layers, storing their keys and values."""
        for index, layer in enumerate(self._model.layers):
            rows = rows + project(self._attend(index, layer, batch, placement, rows), layer.out)
            rows = rows + feed_forward(rows, layer)
        return rows

    def _attend(
        self, index: int, layer: Layer, batch: Batch, placement: Placement, rows: Floats
    ) -> Floats:
        n_rows, dim = rows.shape
        normal = normalised(rows)
        query, key, value = (
            project(normal, weights).reshape(n_rows, self._heads, -1).swapaxes(0, 1)
            for weights in (layer.query, layer.key, layer.value)
        )
        query, turned = (self._turn(array, placement.positions) for array in (query, key))
        seen = np.empty_like(query)
        row = 0
        for span, start in zip(batch.spans, placement.starts, strict=True):
            here = slice(row, row + len(span.inputs))
            row = here.stop
            stop = start + len(span.inputs)
            for array, new in ((self._keys, key), (self._turned, turned), (self._values, value)):
                array[index, span.slot_id, :, start:stop] = new[:, here]
            seen[:, here] = _weighted(
                query[:, here],
                self._turned[index, span.slot_id, :, :stop],
                self._values[index, span.slot_id, :, :stop],
                self._visible(batch.kind, span, start),
            )
        return seen.swapaxes(0, 1).reshape(n_rows, dim)

    def _visible(self, kind: BatchKind, span: Span, start: int) -> Bools:
        """Say for each row of a span, and each cell up to its last, whether it is seen."""
        stop = start + len(span.inputs)
        visible = np.ones((len(span.inputs), stop), dtype=np.bool_)
        if kind is not BatchKind.MEDIA_NON_CAUSAL:
            visible = np.tri(*visible.shape, start, dtype=np.bool_)
        if self._window:
            positions = np.array(self.ledger.positions[span.slot_id][:stop])
            visible &= positions[start:, np.newaxis] - positions < self._window
        return visible

    def _turn(self, heads: Floats, positions: list[int]) -> Floats:
        """Turn vectors, the last two axes being rows and dimensions, by their rows' positions."""
        cos, sin = self._cos[positions], self._sin[positions]
        first, second = np.split(heads, 2, axis=-1)
        turned = np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
        return whole(turned / TURN)


def _weighted(query: Floats, key: Floats, value: Floats, visible: Bools) -> Floats:
    """Return the mean of the values a row sees, weighted by the fit of query and key."""
    fit = query @ key.swapaxes(1, 2) / (ONE * ONE * np.sqrt(query.shape[-1]))
    scores = np.where(visible, whole(fit * STEPS), -np.inf)
    distance = np.minimum(scores.max(axis=-1, keepdims=True) - scores, len(FALL) - 1)
    weights = FALL[distance.astype(np.intp)]
    return whole(weights @ value / weights.sum(axis=-1, keepdims=True))
