"""A pipe whose reader sleeps."""

import os
from contextlib import suppress


def full_pipe() -> tuple[int, int]:
    """Return both ends of a pipe, the reader first, that takes no more until it is read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    return reader, writer
