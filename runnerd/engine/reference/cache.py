"""The memory of every slot: keys and values of its cells, and a recurrent layer's state.

Keys are kept as computed and also turned by their position (rotary embedding). A shift
turns the kept ones anew, so a shifted key is exactly that of its new position, however often it
moved. What a shift cannot undo: keys and values above the first layer were computed when the
dropped inputs could be seen, and stay so. With one layer a shifted cache equals a new one.

Sliding layers hold the positions from a slot's floor on. A row that should see one below it
does not, and nothing says so: llama.cpp is like that too.
"""

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Batch, BatchKind, Limits, Span
from runnerd.engine.reference.attention import Bools, Rotation, weighted
from runnerd.engine.reference.ledger import Ledger, Placement
from runnerd.engine.reference.model import Layer, Weights, feed_forward, normalised, project
from runnerd.engine.reference.options import LayerKind, ReferenceOptions
from runnerd.engine.reference.recurrence import carried

Floats = NDArray[np.float64]


class Memory:
    """Holds `n_ctx` cells per slot, all arrays with the layers first and then the slots."""

    def __init__(self, options: ReferenceOptions, limits: Limits) -> None:
        self.ledger = Ledger(limits)
        self.kinds = options.kinds
        self.sliding = [n for n, kind in enumerate(self.kinds) if kind is LayerKind.SLIDING]
        self.floors = [0] * limits.n_slots
        self._heads = options.heads
        self._window = options.window
        self._n_slid = limits.window and limits.window + options.spare
        head_dim = options.dim // options.heads
        shape = (options.layers, limits.n_slots, options.heads, limits.n_ctx, head_dim)
        self.keys, self.turned, self.values = (np.zeros(shape) for _ in range(3))
        self.states = np.zeros((int(options.recurrent), limits.n_slots, options.dim))
        self.rotation = Rotation(limits.n_ctx, head_dim)

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats]:
        """What there is of every cell."""
        return self.keys, self.turned, self.values

    def forward(self, weights: Weights, batch: Batch, placement: Placement, rows: Floats) -> Floats:
        """Run embedded rows through the layers, storing what these keep of them."""
        for index, layer in enumerate(weights.layers):
            if self.kinds[index] is LayerKind.RECURRENT:
                seen = self._carry(index, layer, batch, rows)
            else:
                seen = self._attend(index, layer, batch, placement, rows)
            rows = rows + project(seen, layer.out)
            rows = rows + feed_forward(rows, layer)
        return rows

    def forget_slid(self, batch: Batch) -> None:
        """Let the sliding layers forget what is out of the window, once rows are stored."""
        for span in batch.spans:
            self._slide(span.slot_id, self.ledger.slots[span.slot_id].n_past)

    def forget_unstored(self, batch: Batch) -> None:
        """Let the sliding layers forget what rows would have left behind that are not stored."""
        for span in batch.spans:
            n_past = self.ledger.slots[span.slot_id].n_past
            self._slide(span.slot_id, n_past + len(span.inputs))
            self.floors[span.slot_id] = min(self.floors[span.slot_id], n_past)

    def _slide(self, slot_id: int, n_past: int) -> None:
        if self._n_slid:
            self.floors[slot_id] = max(self.floors[slot_id], n_past - self._n_slid)

    def _carry(self, index: int, layer: Layer, batch: Batch, rows: Floats) -> Floats:
        values = project(normalised(rows), layer.value)
        seen = np.empty_like(values)
        row = 0
        for span in batch.spans:
            here = slice(row, row + len(span.inputs))
            row = here.stop
            seen[here] = carried(self.states[index, span.slot_id], values[here])
        return normalised(seen)

    def _attend(
        self, index: int, layer: Layer, batch: Batch, placement: Placement, rows: Floats
    ) -> Floats:
        n_rows, dim = rows.shape
        normal = normalised(rows)
        query, key, value = (
            project(normal, weights).reshape(n_rows, self._heads, -1).swapaxes(0, 1)
            for weights in (layer.query, layer.key, layer.value)
        )
        query, turned = (self.rotation.turn(heads, placement.positions) for heads in (query, key))
        seen = np.empty_like(query)
        row = 0
        for span, start in zip(batch.spans, placement.starts, strict=True):
            here = slice(row, row + len(span.inputs))
            row = here.stop
            stop = start + len(span.inputs)
            for array, new in zip(self.arrays, (key, turned, value), strict=True):
                array[index, span.slot_id, :, start:stop] = new[:, here]
            seen[:, here] = weighted(
                query[:, here],
                self.turned[index, span.slot_id, :, :stop],
                self.values[index, span.slot_id, :, :stop],
                self._visible(self.kinds[index], batch.kind, span, start),
            )
        return seen.swapaxes(0, 1).reshape(n_rows, dim)

    def _visible(self, layer: LayerKind, kind: BatchKind, span: Span, start: int) -> Bools:
        """Say for each row of a span, and each cell up to its last, whether it is seen."""
        stop = start + len(span.inputs)
        visible = np.ones((len(span.inputs), stop), dtype=np.bool_)
        if kind is not BatchKind.MEDIA_NON_CAUSAL:
            visible = np.tri(*visible.shape, start, dtype=np.bool_)
        if layer is LayerKind.SLIDING:
            positions = np.array(self.ledger.slots[span.slot_id].positions[:stop])
            visible &= positions[start:, np.newaxis] - positions < self._window
            visible &= positions >= self.floors[span.slot_id]
        return visible
