"""What a process holds, and whether it grows from request to request."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from msgspec import Struct

from loadtest.bars import Bar, at_most

COUNTED = ("Anonymous:", "Swap:")  # mapped pages of a model come and go, and are no growth
MOST_BYTES_PER_REQUEST = 1024.0


class Holding(Struct, frozen=True):
    """What a process holds after `n_requests`: memory of its own, descriptors, threads."""

    n_requests: int
    n_bytes: int
    n_descriptors: int
    n_threads: int


class Growth(Struct, frozen=True):
    """How holdings grow: memory by request, the rest between the halves of the time."""

    bytes_per_request: float
    n_descriptors: int
    n_threads: int
    most_bytes: int

    def bars(self, what: str) -> list[Bar]:
        """Return what must not grow by requests, or whatever else there were so many of."""
        return [
            at_most(f"memory per {what}, bytes", self.bytes_per_request, MOST_BYTES_PER_REQUEST),
            at_most(f"more descriptors, by {what}s", self.n_descriptors, 0),
            at_most(f"more threads, by {what}s", self.n_threads, 0),
        ]


def holding(pid: int, n_requests: int) -> Holding:
    """Return what a process holds now."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = [line.split() for line in lines]
    n_bytes = 1024 * sum(int(words[1]) for words in sizes if words[0] in COUNTED)
    process = psutil.Process(pid)
    return Holding(n_requests, n_bytes, process.num_fds(), process.num_threads())


def growth(seen: Sequence[Holding]) -> Growth:
    """Return how holdings grow; there are at least two."""
    slope, _ = np.polyfit([each.n_requests for each in seen], [each.n_bytes for each in seen], 1)
    return Growth(
        bytes_per_request=float(slope),
        n_descriptors=n_more([each.n_descriptors for each in seen]),
        n_threads=n_more([each.n_threads for each in seen]),
        most_bytes=max(each.n_bytes for each in seen),
    )


def n_more(counts: Sequence[int]) -> int:
    """Return by how many the fewest of the second half are more than those of the first.

    Threads that wait for work come and go; one that is never let go of is there at every look.
    """
    half = len(counts) // 2
    return min(counts[half:]) - min(counts[:half])
