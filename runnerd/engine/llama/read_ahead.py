"""Reads a model's files into the page cache before they are mapped.

Mapped pages come in from a disk by one fault after another within a single call, for minutes in
which nobody is told how far it is, and which cannot be stopped.

Source: preadv2(2), RWF_NOWAIT.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.memory import available_bytes
from runnerd.errors import BadModel, ModelMissing

CHUNK_BYTES = 4 << 20  # a disk that gives 20 MB/s is heard of five times a second
PROBE_BYTES = 128 << 10  # the kernel reads as much at once, so it mostly has or lacks it all


def read_ahead(files: Sequence[tuple[str, int]], reached: Callable[[float], None]) -> bool:
    """Read what is not in the page cache, unless main memory has no room for all; return if so.

    `files` are paths, and the sizes that their headers were checked with. `reached` is told the
    fraction that is done after each chunk, and may raise. Where all is there already it takes
    1 ms for 100 MB.

    Raises:
        BadModel: a file has been cut short since.
        ModelMissing: a file cannot be read.
    """
    n_all = sum(n_bytes for _, n_bytes in files)
    if n_all > available_bytes():
        return False
    n_before = 0
    for path, n_bytes in files:
        for n_done in read_file(path, n_bytes):
            reached((n_before + n_done) / n_all)
        n_before += n_bytes
    return True


def read_file(path: str, n_bytes: int) -> Iterator[int]:
    """Read a file as `read_ahead` does; yields how many bytes are there, after each chunk.

    Raises:
        BadModel: it has less than `n_bytes`.
        ModelMissing: it cannot be read.
    """
    at = 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            buffer = memoryview(bytearray(min(CHUNK_BYTES, n_bytes)))
            while at < n_bytes:
                end = min(at + CHUNK_BYTES, n_bytes)
                if _is_cached(fd, at, end):
                    at = end
                else:
                    with suppress(OSError):  # the disk has the next chunk to fetch meanwhile
                        os.posix_fadvise(fd, end, CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
                    n_read = os.preadv(fd, [buffer[: end - at]], at)
                    if n_read == 0:
                        raise _cut_short(path, at)
                    at += n_read
                yield at
        finally:
            os.close(fd)
    except OSError as err:
        raise ModelMissing(f"{path}: byte {at}: {err.strerror} (errno {err.errno})") from err


def _is_cached(fd: int, begin: int, end: int) -> bool:
    byte = bytearray(1)
    try:
        for at in (*range(begin, end, PROBE_BYTES), end - 1):
            if os.preadv(fd, [byte], at, os.RWF_NOWAIT) == 0:
                return False
    except OSError:  # it would wait; or what is wrong will be told when it is read
        return False
    return True


def _cut_short(path: str, n_bytes: int) -> BadModel:
    """Return the error that names the tensor which the file has no longer."""
    try:
        read_gguf(path)
    except BadModel as err:
        return err
    return BadModel(f"{path}: it was cut to {n_bytes} bytes and written anew while it was read")
