"""Rows out of libmtmd: chunks of images encoded, together where the projector can."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from runnerd.engine.llama.mtmd import lib, quiet_mtmd_load
from runnerd.errors import EngineFailed

Rows = npt.NDArray[np.float32]
Offsets = npt.NDArray[np.int32]


def encode_chunks(context: int, chunks: Sequence[int], n_embd: int) -> list[Rows | EngineFailed]:
    """Return the rows of each chunk, or why there are none. One call at a time.

    What several chunks fail at together each of them tries alone.
    """
    found: list[Rows | EngineFailed] = []
    while len(found) < len(chunks):
        together = _encode_first(context, chunks[len(found) :], n_embd)
        if together is None:
            found.append(_encode_alone(context, chunks[len(found)], n_embd))
        else:
            found += map(_finite, together)
    return found


def _encode_alone(context: int, chunk: int, n_embd: int) -> Rows | EngineFailed:
    """Encode a chunk that failed before, and listen to why."""
    with quiet_mtmd_load() as errors:
        rows = _encode_first(context, [chunk], n_embd)
        words = " ".join("; ".join(errors).split())
    if rows is None:
        return EngineFailed(f"the projector failed to encode the image: {words}")
    return _finite(rows[0])


def _finite(rows: Rows) -> Rows | EngineFailed:
    """Refuse rows that would make the model say anything, and spoil what it keeps of them."""
    if np.isfinite(rows).all():
        return rows
    return EngineFailed("the projector made rows of the image that are not finite")


def _encode_first(context: int, chunks: Sequence[int], n_embd: int) -> Sequence[Rows] | None:
    """Encode as many of the first chunks as go together; None: it failed."""
    with _batch(context) as batch:
        n_together = 0
        for chunk in chunks:
            if lib.mtmd_batch_add_chunk(batch, chunk):
                break  # it is of another size, there would be too many, or they go one by one
            n_together += 1
        if n_together == 0 or lib.mtmd_batch_encode(batch):
            return None
        return [_copy_rows(batch, chunk, n_embd) for chunk in chunks[:n_together]]


@contextmanager
def _batch(context: int) -> Iterator[int]:
    batch: int = lib.mtmd_batch_init(context)
    try:
        yield batch
    finally:
        lib.mtmd_batch_free(batch)


def _copy_rows(batch: int, chunk: int, n_embd: int) -> Rows:
    pointer = lib.mtmd_batch_get_output_embd(batch, chunk)
    assert pointer, "a chunk that was encoded has no rows"
    shape = (lib.mtmd_input_chunk_get_n_tokens(chunk), n_embd)
    rows: Rows = np.ctypeslib.as_array(pointer, shape)
    return rows.copy()  # they are freed with the batch


def offsets_of(chunk: int, n_axes: int) -> Offsets:
    """Return the positions of a chunk's rows where it begins at 0, as `EncodedImage` says."""
    tokens = lib.mtmd_input_chunk_get_tokens_image(chunk)
    n_rows = lib.mtmd_input_chunk_get_n_tokens(chunk)
    offsets = np.zeros((n_axes, n_rows), np.int32)
    for row in range(n_rows):
        at = lib.mtmd_image_tokens_get_decoder_pos(tokens, ctypes.c_int32(0), row)
        offsets[:3, row] = (at.t, at.y, at.x)[:n_axes]
    return offsets
