"""The logits of a llama.cpp engine, to compare more than the likeliest token."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from runnerd.core.batch import Span
from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.context import LlamaContext
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.load import load_llama

Row = npt.NDArray[np.float32]


def context_of(engine: LlamaEngine) -> LlamaContext:
    """Return the context, below the sampling."""
    return engine._context


def feed(
    engine: LlamaEngine, slot_id: int, tokens: Sequence[int], start: int = 0, n_rows: int = 32
) -> Row:
    """Evaluate tokens, so many at a time; return the logits after the last one."""
    row: Row = np.empty(0, np.float32)
    for at in range(0, len(tokens), n_rows):
        piece = tuple(tokens[at : at + n_rows])
        is_last = at + n_rows >= len(tokens)
        rows = context_of(engine).decode([Span(0, slot_id, start + at, piece, is_last)])
        row = rows[-1].copy() if is_last else row
    return row


@contextmanager
def loaded_llama(config: EngineConfig) -> Iterator[LlamaEngine]:
    """Load an engine for a `with` block."""
    engine = load_llama(config, lambda phase, fraction: True)
    try:
        yield engine
    finally:
        engine.close()
