"""Embeddings: the rows of an input after the last layer, pooled."""

from collections.abc import Iterator, Sequence

import numpy as np

from runnerd.core.batch import Batch, BatchKind, Limits, Span
from runnerd.engine.base import Pooling, Vectors
from runnerd.engine.reference.cache import Floats, Memory
from runnerd.engine.reference.model import Model, normalised
from runnerd.engine.reference.options import ReferenceOptions

POOLINGS: tuple[Pooling, ...] = ("model", "mean", "last")


class Embedder:
    """Makes embeddings of up to `n_embed` tokens, in a memory of its own, without adapters."""

    def __init__(self, model: Model, options: ReferenceOptions, n_embed: int) -> None:
        self.n_embed = n_embed
        self._model = model
        self._options = options

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """See `Engine.embed`."""
        n_rows = sum(map(len, inputs))
        assert n_rows <= self.n_embed, f"{n_rows} tokens, n_embed is {self.n_embed}"
        assert pooling in POOLINGS, f"{pooling} is none of {POOLINGS}"
        rows = list(self._rows(inputs))
        pooled = [one[-1] if pooling == "last" else one.mean(axis=0) for one in rows]
        return np.array(pooled, np.float32).reshape(len(inputs), self._options.dim)

    def _rows(self, inputs: Sequence[Sequence[int]]) -> Iterator[Floats]:
        for tokens in inputs:
            n_ctx = len(tokens)
            assert n_ctx, "an input without tokens"
            memory = Memory(self._options, Limits(1, n_ctx, n_ctx, n_ctx, n_ctx))
            batch = Batch(BatchKind.TOKENS, (Span(0, 0, 0, tuple(tokens)),))
            rows = self._model.embed(np.array(tokens))
            placement = memory.ledger.place(batch)
            yield normalised(memory.forward(self._model.base, batch, placement, rows))
