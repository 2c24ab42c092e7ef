"""How many threads a pass has: beside an encoder, and beside other processes.

llama.cpp's threads wait for each other by spinning. With more of them than cores, one that has
to wait for its core lets all others of its team spin: two teams that want every core lose most
of both their speed. And as soon as there are more threads than cores in all, OpenMP has those that
wait give up their core sooner, for good: on two cores the gap between tokens went from 28 to 42 ms
(p95), without an image in sight, with two threads for the encoder instead of one.

A team can have another number for each pass: one thread runs without OpenMP, and a team that
grows starts a thread in 0.01 ms. What is computed is the same to the bit, but for one row in a
pass of its own with flash attention: where it looks back on more than 256 cells they are summed in
parts, one per thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from runnerd.engine.llama.abort import AbortSwitch
from runnerd.engine.llama.pass_watch import PassWatch
from runnerd.engine.llama.spare_core import SpareCoreProbe
from runnerd.engine.thread_governor import Kind, PassTime, ThreadGovernor

if TYPE_CHECKING:  # to import it loads libmtmd, which only models that read images need
    from runnerd.engine.llama.projector import Projector

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """Threads for the encoder, and for a pass beside it."""

    encode: int
    beside: int


def share_threads(n_threads: int) -> ThreadShares:
    """Divide the threads: the encoder's number is fixed when it is loaded, so it gets half."""
    encode = max(1, n_threads // 2)
    return ThreadShares(encode, max(1, n_threads - encode))


class Team:
    """The threads of a model's passes: `n_threads` at most, fewer while others want the cores.

    The number is fixed where devices compute: then it says nothing that threads have no CPU time.
    """

    def __init__(
        self, n_threads: int, projector: "Projector | None" = None, *, adapts: bool
    ) -> None:
        self._shares = share_threads(n_threads)
        self._governor = ThreadGovernor(n_threads)
        self._projector = projector
        self._probe = SpareCoreProbe()
        self._watch = PassWatch(self._governor.should_stop) if adapts and n_threads > 1 else None

    @contextmanager
    def passing(self, kind: Kind, n_rows: int, abort: AbortSwitch | None = None) -> Iterator[int]:
        """Measure a `with` block, a pass with the number of threads that is yielded.

        With `abort` it is stopped where fewer threads are to go on with it. One beside an
        encoder, which shares the cores already, and one that fails otherwise tell nothing.
        """
        if self._is_encoding:
            yield min(self._governor.n_threads, self._shares.beside)
            return
        if self._watch is None:
            yield self._governor.n_threads
            return
        self._look_for_core()
        n_threads = self._governor.n_threads
        running = self._watch.begin(abort)
        has_failed = True
        try:
            yield n_threads
            has_failed = False
        finally:
            self._watch.end()
            if not self._is_encoding and (running.was_stopped or not has_failed):
                wall_s, cpu_s = running.spent()
                passed = PassTime(kind, n_rows, wall_s, cpu_s, is_whole=not has_failed)
                self._governor.observe(passed, monotonic())
                self._tell(n_threads)

    def close(self) -> None:
        """Look at no pass any more."""
        if self._watch is not None:
            self._watch.close()

    @property
    def _is_encoding(self) -> bool:
        return self._projector is not None and self._projector.is_encoding

    def _look_for_core(self) -> None:
        governor, now = self._governor, monotonic()
        n_threads, share = governor.n_threads, self._probe.take()
        if share is not None:
            governor.take_probe(share, now)
            self._tell(n_threads)
        elif governor.wants_probe(now):
            self._probe.start()

    def _tell(self, n_before: int) -> None:
        governor = self._governor
        if governor.n_threads != n_before:
            log.info("threads.changed", n_threads=governor.n_threads, n_most=governor.n_most)
