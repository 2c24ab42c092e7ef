"""llama.cpp's library for images, libmtmd, and what it takes out of its lists.

Only to be imported where there is a projector: to load it takes time and memory. It says nothing
in use, not even why it failed: it has one log for everything, hundreds of lines per image.
"""

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from runnerd.engine.llama.library import load_callback, quiet_load, silent_callback
from runnerd.engine.llama.picture import RowRun
from runnerd.errors import ConfigError

try:
    from llama_cpp import mtmd_cpp as lib
except (ImportError, OSError, RuntimeError) as err:
    raise ConfigError(f"llama-cpp-python comes without libmtmd: {err}") from err

__all__ = ["IMAGE", "chunks_of", "lib", "quiet_mtmd_load", "run_of", "text_of"]

IMAGE = lib.MTMD_INPUT_CHUNK_TYPE_IMAGE

lib.mtmd_log_set(silent_callback, ctypes.c_void_p())


@contextmanager
def quiet_mtmd_load() -> Iterator[deque[str]]:
    """Log a load as that of a model is; yields the last errors, in words."""
    with quiet_load() as errors:
        lib.mtmd_log_set(load_callback, ctypes.c_void_p())
        try:
            yield errors
        finally:
            lib.mtmd_log_set(silent_callback, ctypes.c_void_p())


@contextmanager
def chunks_of(
    context: int, width: int, height: int, rgb_at: int | None
) -> Iterator[list[int] | None]:
    """Yield the chunks of an image, valid within the block; None if libmtmd cannot take it.

    `rgb_at` is where its pixels are, in memory; None: for counting only. No text is passed to
    libmtmd, so none can be taken for an image. It only reads what it shares with an encoder: any
    thread may ask at any time, also while another one encodes.

    Source: mtmd.h, "this function is thread-safe (shared ctx)".
    """
    pixels = None if rgb_at is None else ctypes.cast(rgb_at, ctypes.POINTER(ctypes.c_uint8))
    bitmap = lib.mtmd_bitmap_init(width, height, pixels)
    chunks = lib.mtmd_input_chunks_init()
    try:
        part = lib.mtmd_input_part(text=None, bitmap=bitmap)
        parts = (ctypes.POINTER(lib.mtmd_input_part) * 1)(ctypes.pointer(part))
        code = lib.mtmd_tokenize_from_parts(context, chunks, parts, 1, False)
        lib.mtmd_bitmap_free(bitmap)  # what is left of it lies in the chunks
        bitmap = None
        count = lib.mtmd_input_chunks_size(chunks)
        yield None if code else [lib.mtmd_input_chunks_get(chunks, i) for i in range(count)]
    finally:
        lib.mtmd_input_chunks_free(chunks)
        if bitmap is not None:
            lib.mtmd_bitmap_free(bitmap)


def text_of(chunk: int) -> tuple[int, ...]:
    """Return the tokens of a chunk of text."""
    count = ctypes.c_size_t()
    tokens = lib.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    return tuple(tokens[: count.value]) if count.value else ()


def run_of(context: int, chunk: int) -> RowRun:
    """Return how many rows and positions a chunk of an image takes."""
    return RowRun(
        lib.mtmd_input_chunk_get_n_tokens(chunk),
        lib.mtmd_input_chunk_get_n_pos(chunk),
        bool(lib.mtmd_decode_use_non_causal(context, chunk)),
    )
