"""Keys of a terminal as they are pressed."""

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio


@contextmanager
def single_keys() -> Iterator[bool]:
    """Let keys come one by one, without echo, in a block; whether stdin is a terminal at all.

    Ctrl-C is a signal as ever.
    """
    if not sys.stdin.isatty():
        yield False
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield True
    finally:
        with suppress(termios.error):  # a terminal that has gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def until_key(key: str) -> None:
    """Wait for a key, or for the terminal's end."""
    fd = sys.stdin.fileno()
    while True:
        await anyio.wait_readable(fd)
        pressed = os.read(fd, 64)
        if not pressed or key.encode() in pressed:
            return
