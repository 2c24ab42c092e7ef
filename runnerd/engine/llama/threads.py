"""How an encoder and forward passes share the cores.

llama.cpp's threads wait for each other by spinning. With more of them than cores, one that has
to wait for its core lets all others of its team spin: two teams that want every core lose most
of both their speed. And as soon as there are more threads than cores in all, OpenMP has those that
wait give up their core sooner, for good: on two cores the gap between tokens went from 28 to 42 ms
(p95), without an image in sight, with two threads for the encoder instead of one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """Threads for a pass that runs alone, for the encoder, and for a pass beside it."""

    alone: int
    encode: int
    beside: int


def share_threads(n_threads: int) -> ThreadShares:
    """Divide the threads: the encoder's number is fixed when it is loaded, so it gets half."""
    encode = max(1, n_threads // 2)
    return ThreadShares(n_threads, encode, max(1, n_threads - encode))
