"""Whether there is a core to spare: a thread works beside a pass, and sees how much it got.

It takes 50 ms: in less, a process that gives way to others has as much as one that does not.
Neither the rights nor the files of a machine's figures are needed, and a quota shows as well.
"""

from hashlib import sha256
from threading import Thread
from time import monotonic, thread_time

WORK_S = 0.05  # a dozen of the scheduler's time slices
BLOCK = bytes(2**18)  # hashed without the GIL, in less than a millisecond


class SpareCoreProbe:
    """Measures the share of a core that one more thread has. Used by one thread."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._share = 0.0

    def start(self) -> None:
        """Begin to measure, unless that is going on."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="spare-core", daemon=True)
            self._thread.start()

    def take(self) -> float | None:
        """Return what was measured, once; None: nothing, or not yet."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._share

    def _work(self) -> None:
        began_at, had_s = monotonic(), thread_time()
        while monotonic() - began_at < WORK_S:
            sha256(BLOCK)
        self._share = (thread_time() - had_s) / (monotonic() - began_at)
