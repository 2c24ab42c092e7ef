"""Writing log lines to a descriptor: one write for each, and no reader is waited for."""

import os
import select
import stat
from contextlib import suppress
from typing import Protocol

STALL_MS = 100  # a reader, or a disk, may pause this long; then nobody waits for it any more


class Writer(Protocol):
    """Takes records, and waits for no reader. `n_dropped` were lost and are to be told of."""

    n_dropped: int

    @property
    def fd(self) -> int:
        """What it writes to."""
        ...

    def write(self, record: bytes) -> None:
        """Write a record, which tells of all that were dropped before, or count it as dropped."""
        ...

    def linger(self, within_s: float) -> None:
        """Wait until what was written is where it belongs, for a while: who calls ends then."""
        ...

    def close(self) -> None:
        """Write no more."""
        ...


class LineWriter:
    """Writes whole lines to a descriptor, and waits for no reader.

    Lines of two processes never mix up to 4096 bytes (PIPE_BUF), on files at any length. There
    is no lock: a thread that logs must not wait for another, nor a signal handler for its own.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.n_dropped = 0
        self._is_torn = False  # the last write stopped inside a line
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        # A pipe that polls as writable takes this much without blocking, and perhaps no more.
        self._chunk_bytes = select.PIPE_BUF if is_pipe else 1 << 30

    @property
    def fd(self) -> int:
        """What it writes to."""
        return self._fd

    def write(self, record: bytes) -> None:
        """Write a line and its newline, or count it as dropped."""
        self.n_dropped = 0 if self.write_whole(record) else self.n_dropped + 1

    def write_whole(self, record: bytes) -> bool:
        """Write a line and its newline; say whether all of it could be written."""
        data = b"\n%s\n" % record if self._is_torn else b"%s\n" % record
        rest = memoryview(data)
        with suppress(OSError):  # what is left of `rest` tells that the line was lost
            while rest and self._is_writable():
                rest = rest[os.write(self._fd, rest[: self._chunk_bytes]) :]
        self._is_torn = bool(rest) and (self._is_torn or len(rest) < len(data))
        return not rest

    def linger(self, within_s: float) -> None:
        """Do nothing: a line is where it belongs as soon as it is written."""

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _is_writable(self) -> bool:
        return is_writable(self._fd, 0 if self.n_dropped else STALL_MS)


def is_writable(fd: int, within_ms: float) -> bool:
    """Wait until a write to the descriptor would not block, for a while; say whether it is so."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(within_ms))
