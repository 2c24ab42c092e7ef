"""Rows that an encoder made, as they ride in spans: what is checked, and where they lie.

A group begins at a row whose offsets are all 0. Its rows are stored in order, each as far on as
the group has reached so far, on whichever axis that is: positions never fall, a group takes as
many as it is said to, and a slice of it lies where it lies in the whole.
"""

from collections.abc import Sequence

import numpy as np

from runnerd.core.batch import BatchKind, Span
from runnerd.engine.base import EncodedImage


def check_encoded(kind: BatchKind, span: Span, n_embd: int, *, one_pass: bool) -> None:
    """Assert that a span of encoded media has rows of it, whole groups where they must be."""
    media = span.media
    assert kind is not BatchKind.TOKENS, f"sequence {span.seq_id}: tokens with rows of a medium"
    assert one_pass == (kind is BatchKind.MEDIA_NON_CAUSAL), f"an encoded image in a batch {kind}"
    assert isinstance(media, EncodedImage), f"{type(media).__name__} is no encoded image"
    n_rows = len(media.rows)
    assert media.rows.shape == (n_rows, n_embd), f"rows of {media.rows.shape[1:]}, not {n_embd}"
    assert media.offsets.shape[1:] == (n_rows,), f"offsets {media.offsets.shape} of {n_rows} rows"
    start, stop = span.row0, span.row0 + len(span.inputs)
    assert 0 <= start < stop <= n_rows, f"rows {start} to {stop} of {n_rows}"
    group = _group_at(media, start)
    assert stop <= group.stop, f"rows {start} to {stop}, the group ends at {group.stop}"
    if one_pass:
        is_whole = (start, stop) == (group.start, group.stop)
        assert is_whole, f"rows {start} to {stop} of a group {group}: rows that go together"


def encoded_positions(media: EncodedImage, span: Span) -> tuple[int, Sequence[int]]:
    """Return the position that a span's rows follow on, and their own."""
    first = _group_at(media, span.row0).start
    offsets = media.offsets[:, first : span.row0 + len(span.inputs)]
    reached = np.maximum.accumulate(offsets.max(axis=0)) + span.pos
    n_before = span.row0 - first
    follows = int(reached[n_before - 1]) + 1 if n_before else span.pos
    return follows, reached[n_before:].tolist()


def _group_at(media: EncodedImage, row: int) -> range:
    """Return the rows of the group that a row belongs to."""
    starts = np.flatnonzero(~media.offsets.any(axis=0)).tolist()
    assert starts[:1] == [0], "the first row of an encoded image begins no group"
    stops = [*starts[1:], len(media.rows)]
    return next(
        range(start, stop) for start, stop in zip(starts, stops, strict=True) if start <= row < stop
    )
