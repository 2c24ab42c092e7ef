"""Batches cut into chunks of `n_ubatch` rows, as llama.cpp does; a decode can stop between them."""

from collections.abc import Iterator
from itertools import accumulate

from msgspec.structs import replace

from runnerd.core.batch import Batch, BatchKind, Span


def chunks_of(batch: Batch, n_ubatch: int) -> list[Batch]:
    """Cut a batch into chunks that hold its rows in order."""
    n_rows = batch.n_rows
    if n_rows <= n_ubatch:
        return [batch]
    return [
        Batch(batch.kind, tuple(_rows_of(batch, start, start + n_ubatch)))
        for start in range(0, n_rows, n_ubatch)
    ]


def stored_rows(batch: Batch, n_stored: int) -> tuple[int, ...]:
    """Return how many rows of each span are among the first `n_stored` of a batch."""
    sizes = [len(span.inputs) for span in batch.spans]
    firsts = accumulate(sizes, initial=0)
    return tuple(
        min(max(n_stored - first, 0), size) for first, size in zip(firsts, sizes, strict=False)
    )


def _rows_of(batch: Batch, start: int, stop: int) -> Iterator[Span]:
    """Yield what of a batch's spans lies in its rows [start, stop)."""
    first = 0
    for span in batch.spans:
        n_rows = len(span.inputs)
        begin, end = max(start - first, 0), min(stop - first, n_rows)
        first += n_rows
        if begin >= end:
            continue
        is_media = batch.kind is not BatchKind.TOKENS
        yield replace(
            span,
            pos=span.pos if is_media else span.pos + begin,
            inputs=span.inputs[begin:end],
            wants_logits=span.wants_logits and end == n_rows,
            row0=span.row0 + begin if is_media else 0,
        )
