"""What a batch must be like. llama.cpp aborts the process on many a broken rule."""

from collections.abc import Sequence

from runnerd.core.batch import Batch, BatchKind, Limits, Span
from runnerd.core.prompt import media_key
from runnerd.engine.base import EncodedImage
from runnerd.engine.reference.encoded import encoded_positions
from runnerd.engine.reference.media import Medium


def check_rows(batch: Batch, limits: Limits) -> int:
    """Assert that a batch has the rows that one native call may have; return how many."""
    n_rows = batch.n_rows
    assert 0 < n_rows <= limits.n_batch, f"{n_rows} rows, n_batch is {limits.n_batch}"
    if batch.kind is BatchKind.MEDIA_NON_CAUSAL:
        assert n_rows <= limits.n_ubatch, f"{n_rows} rows, n_ubatch is {limits.n_ubatch}"
        slot_ids = [span.slot_id for span in batch.spans]
        # Without a causal mask the rows of one slot all see each other.
        assert len(set(slot_ids)) == len(slot_ids), f"slots {slot_ids}: one image each"
    return n_rows


def positions_of(kind: BatchKind, span: Span, n_past: int) -> Sequence[int]:
    """Return the positions of a span's rows, the first of which must follow on `n_past`.

    A medium's span has the position of its group's first row; its rows may share positions.
    """
    if kind is BatchKind.TOKENS:
        assert span.pos == n_past, f"slot {span.slot_id}: row at {span.pos}, next is {n_past}"
        return (n_past,) if len(span.inputs) == 1 else range(n_past, n_past + len(span.inputs))
    rows = range(span.row0, span.row0 + len(span.inputs))
    keys = tuple(media_key(span.media_id, row) for row in rows)
    assert span.inputs == keys, f"medium {span.media_id}: the inputs are not its rows {rows}"
    if isinstance(span.media, EncodedImage):
        follows, positions = encoded_positions(span.media, span)
    else:
        follows, positions = _named_positions(kind, span, rows)
    assert follows == n_past, f"slot {span.slot_id}: row after {follows}, next is {n_past}"
    return positions


def _named_positions(kind: BatchKind, span: Span, rows: range) -> tuple[int, Sequence[int]]:
    """Return the position that rows of `<image:...>` follow on, and their own."""
    medium = Medium.of_id(span.media_id)
    assert 0 <= rows.start < rows.stop <= medium.n_rows, f"{rows} of {medium.n_rows} rows"
    assert medium.one_pass == (kind is BatchKind.MEDIA_NON_CAUSAL), f"{medium} in a batch {kind}"
    if medium.one_pass:
        assert len(rows) == medium.n_rows, f"{rows} of {medium.n_rows} rows that go together"
    follows = span.pos if span.row0 == 0 else span.pos + medium.offset(span.row0 - 1) + 1
    return follows, [span.pos + medium.offset(row) for row in rows]
