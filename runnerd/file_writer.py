"""Log lines into a file, by a thread of its own: a disk can hang, and no poll tells of it.

Who logs waits for the thread, so that a line is in the file once it is logged; but not for long,
and not at all while the disk is known to be slow. Then lines wait in a queue, and what is too much
for it is dropped and counted. A disk that never comes back keeps nobody from ending.
"""

import os
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic

from runnerd.line_writer import STALL_MS, LineWriter

QUEUE_LINES = 1000  # that wait for a slow disk


@dataclass(frozen=True, slots=True)
class _Line:
    record: bytes
    n_told: int = 0  # dropped lines that it tells of
    done: Event = field(default_factory=Event)


class FileWriter:
    """Writes whole lines to a file, and waits for no disk.

    The queue is one that even a signal handler may use while its thread does. The thread begins
    with the first line, and again in a fork of the process, where the old one has not come along.
    """

    def __init__(self, fd: int) -> None:
        self.n_dropped = 0
        self._lines = LineWriter(fd)
        self._fd = fd
        self._thread: Thread | None = None
        self._queue: SimpleQueue[_Line | None] = SimpleQueue()
        self._last = _Line(b"")  # that was queued
        self._last.done.set()
        self._is_slow = False

    @property
    def fd(self) -> int:
        """What it writes to."""
        return self._fd

    def write(self, record: bytes) -> None:
        """Have a line written, or count it as dropped."""
        if self._thread is None or not self._thread.is_alive():
            self._begin()
        if self._queue.qsize() >= QUEUE_LINES:
            self.n_dropped += 1
            return
        line = _Line(record, self.n_dropped)
        self.n_dropped -= line.n_told
        waits = self._last.done.is_set() and not self._is_slow
        self._last = line
        self._queue.put(line)
        if waits and not line.done.wait(STALL_MS / 1e3):
            self._is_slow = True

    def linger(self, within_s: float) -> None:
        """Wait until all lines are in the file, for a while."""
        self._last.done.wait(within_s)

    def close(self) -> None:
        """Close the file once all is in it; who calls does not wait for that."""
        if self._thread is None or not self._thread.is_alive():
            os.close(self._fd)
        else:
            self._queue.put(None)

    def _begin(self) -> None:
        self._queue = SimpleQueue()
        self._last = _Line(b"")
        self._last.done.set()
        self._is_slow = False
        # A daemon thread: the interpreter does not wait for it at its end.
        self._thread = Thread(
            target=self._write_on, args=(self._queue,), name="runnerd-log", daemon=True
        )
        self._thread.start()

    def _write_on(self, queue: SimpleQueue[_Line | None]) -> None:
        while (line := queue.get()) is not None:
            began_at = monotonic()
            if not self._lines.write_whole(line.record):
                self.n_dropped += 1 + line.n_told
            self._is_slow = monotonic() - began_at > STALL_MS / 1e3
            line.done.set()
        self._lines.close()
