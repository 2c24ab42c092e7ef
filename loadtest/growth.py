"""What a process holds, and whether it grows from request to request."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from msgspec import Struct

COUNTED = ("Anonymous:", "Swap:")  # mapped pages of a model come and go, and are no growth


class Holding(Struct, frozen=True):
    """What a process holds after `n_requests`: memory of its own, descriptors, threads."""

    n_requests: int
    n_bytes: int
    n_descriptors: int
    n_threads: int


class Growth(Struct, frozen=True):
    """How holdings grow: bytes by request, the rest between the halves of the time."""

    bytes_per_request: float
    n_descriptors: float
    n_threads: float
    most_bytes: int


def holding(pid: int, n_requests: int) -> Holding:
    """Return what a process holds now."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = [line.split() for line in lines]
    n_bytes = 1024 * sum(int(words[1]) for words in sizes if words[0] in COUNTED)
    process = psutil.Process(pid)
    return Holding(n_requests, n_bytes, process.num_fds(), process.num_threads())


def growth(seen: Sequence[Holding]) -> Growth:
    """Return how holdings grow; there are at least two."""
    half = len(seen) // 2
    slope, _ = np.polyfit([each.n_requests for each in seen], [each.n_bytes for each in seen], 1)
    return Growth(
        bytes_per_request=float(slope),
        n_descriptors=median(each.n_descriptors for each in seen[half:])
        - median(each.n_descriptors for each in seen[:half]),
        n_threads=median(each.n_threads for each in seen[half:])
        - median(each.n_threads for each in seen[:half]),
        most_bytes=max(each.n_bytes for each in seen),
    )
