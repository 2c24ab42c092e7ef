"""The rows of a forward pass over encoded images.

A row has `n_axes` positions. llama.cpp takes the first of every row, then the second of every
row, and so on.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runnerd.core.batch import Span
from runnerd.engine.base import EncodedImage
from runnerd.engine.llama.library import lib

Positions = npt.NDArray[np.int32]
_int32 = ctypes.POINTER(ctypes.c_int32)


def encoded_of(span: Span) -> EncodedImage:
    """Return the rows of the image that a span is a part of."""
    media = span.media
    assert isinstance(media, EncodedImage), f"sequence {span.seq_id} brings no encoded media"
    n_rows, n_offsets = len(media.rows), media.offsets.shape[1]
    assert n_rows == n_offsets, f"{n_rows} rows, and the positions of {n_offsets}"
    return media


def first_position(span: Span) -> int:
    """Return the position of a span's first row, of tokens or of an image."""
    return span.pos if span.media is None else int(positions_of(span)[0, 0])


def positions_of(span: Span) -> Positions:
    """Return the positions of a span's rows: shape (n_axes, n_rows)."""
    offsets = encoded_of(span).offsets[:, span.row0 : span.row0 + len(span.inputs)]
    positions: Positions = offsets + np.int32(span.pos)
    positions[3:] = 0  # as those of tokens
    return positions


def past_media(n_past: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """Return the `n_past` of every slot after spans, each of which begins where its slot ends.

    An image ends behind the last position that one of its rows has on any axis.
    """
    past = list(n_past)
    for span in spans:
        offsets = encoded_of(span).offsets[:, span.row0 : span.row0 + len(span.inputs)]
        expected, first = past[span.slot_id], span.pos + int(offsets[0, 0])
        goes_on = bool(offsets[:, 0].any())  # only the first row of a group lies at its position
        assert first == expected or (goes_on and first < expected), (
            f"position {first}, slot {span.slot_id} has {expected}"
        )
        past[span.slot_id] = max(expected, span.pos + int(offsets.max()) + 1)
    return past


class MediaRows:
    """Makes a llama_batch of rows. What would end the process is checked here, in Python.

    With `n_axes` other than 1 and 4 llama.cpp would read out of bounds, as it would where rows
    were shorter than `n_embd`.
    """

    def __init__(self, n_batch: int, n_slots: int, n_embd: int, n_axes: int) -> None:
        self._n_batch, self._n_slots = n_batch, n_slots
        self._n_embd, self._n_axes = n_embd, n_axes
        self._kept: tuple[object, ...] = ()

    def fill(self, spans: Sequence[Span]) -> tuple[ctypes.Structure, int]:
        """Return a batch, valid until the next call, and how many of its rows give logits."""
        for span in spans:
            assert span.inputs, f"sequence {span.seq_id} brings no rows"
            assert 0 <= span.slot_id < self._n_slots, f"slot {span.slot_id} of {self._n_slots}"
        rows = np.concatenate([self._rows_of(span) for span in spans])
        pos = np.concatenate([positions_of(span) for span in spans], axis=1)
        n_rows, n_outputs = len(rows), sum(span.wants_logits for span in spans)
        assert n_rows <= self._n_batch, f"{n_rows} rows, a batch holds {self._n_batch}"
        assert n_outputs <= self._n_slots, f"{n_outputs} outputs, at most {self._n_slots}"
        assert pos.shape == (self._n_axes, n_rows), f"positions {pos.shape} of {n_rows} rows"
        counts = [len(span.inputs) for span in spans]
        slots = np.repeat(np.array([span.slot_id for span in spans], np.int32), counts)
        outputs = np.zeros(n_rows, np.int8)
        outputs[np.cumsum(counts) - 1] = [span.wants_logits for span in spans]
        ones = np.ones(n_rows, np.int32)
        first = slots.ctypes.data
        slots_at = np.arange(first, first + 4 * n_rows, 4, dtype=np.uintp)
        self._kept = (rows, pos, slots, outputs, ones, slots_at)
        batch: ctypes.Structure = lib.llama_batch(
            n_tokens=n_rows,
            embd=rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=pos.ctypes.data_as(_int32),
            n_seq_id=ones.ctypes.data_as(_int32),
            seq_id=slots_at.ctypes.data_as(ctypes.POINTER(_int32)),
            logits=outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        return batch, n_outputs

    def _rows_of(self, span: Span) -> npt.NDArray[np.float32]:
        rows = encoded_of(span).rows[span.row0 : span.row0 + len(span.inputs)]
        assert rows.shape == (len(span.inputs), self._n_embd), f"rows of shape {rows.shape}"
        assert rows.dtype == np.float32, f"rows of {rows.dtype}"
        return rows
