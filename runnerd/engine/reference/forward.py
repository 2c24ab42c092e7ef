"""The forward pass: embedded rows through the layers to logits, with the adapters in use."""

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Adapters, Batch, BatchKind, Span
from runnerd.engine.base import EncodedImage
from runnerd.engine.reference.cache import Memory
from runnerd.engine.reference.model import Model

Floats = NDArray[np.float64]


class Forward:
    """Runs chunks of rows. `names` are the adapters that there are."""

    def __init__(self, model: Model, memory: Memory, names: tuple[str, ...]) -> None:
        self.names = names
        self._model = model
        self._memory = memory
        self._adapters: Adapters = ()
        self._weights = model.base

    def use_adapters(self, adapters: Adapters) -> None:
        """Run with these adapters from now on."""
        if adapters == self._adapters:
            return
        for adapter in adapters:
            assert adapter.name in self.names, f"no adapter {adapter.name!r}"
        self._adapters, self._weights = adapters, self._model.adapted(adapters)

    def run(self, chunk: Batch) -> Floats:
        """Store a chunk's rows, for which there is room; return the logits of those wanted."""
        placement = self._memory.ledger.place(chunk)
        ends = accumulate([len(span.inputs) for span in chunk.spans])
        outputs = [
            end - 1 for end, span in zip(ends, chunk.spans, strict=True) if span.wants_logits
        ]
        positions = np.array(placement.positions)[outputs]
        if chunk.kind is BatchKind.TOKENS:
            tokens = np.array(placement.inputs)
            if not self._weights.layers:
                return self._model.logits_of_tokens(self._weights, tokens[outputs], positions)
            rows = self._model.embed(tokens)
        else:
            rows = np.concatenate([self._rows_of(span) for span in chunk.spans])
        rows = self._memory.forward(self._weights, chunk, placement, rows)
        self._memory.forget_slid(chunk)
        return self._model.logits(self._weights, rows[outputs], positions)

    def _rows_of(self, span: Span) -> Floats:
        """Return the embedding rows of a medium's span."""
        if isinstance(span.media, EncodedImage):
            return span.media.rows[span.row0 : span.row0 + len(span.inputs)].astype(np.float64)
        return self._model.embed_media(span)
