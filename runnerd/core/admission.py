"""Coming in: who of the queue gets a slot, and how many stay behind.

Slots are given in order, while the cells of the first one's prompt are there.
"""

from itertools import islice

from runnerd.core.emission import Emission, progress
from runnerd.core.line import Line
from runnerd.core.residency import Residency


def give_slots(waiting: Line, residency: Residency, n_steps: int, now: float) -> list[Emission]:
    """Give free slots to waiting sequences; return what these have to say of their prompts."""
    news: list[Emission] = []
    while waiting and residency.pool.n_free > 0:
        sequence = waiting.first
        if not residency.can_take(sequence):
            break
        lease = residency.pool.acquire()
        assert lease is not None
        residency.admit(sequence, lease)
        waiting.serve()
        sequence.last_step = n_steps
        sequence.timings.start(now)
        news += progress(sequence)
    return news


def n_left(waiting: Line, residency: Residency, n_more: int) -> int:
    """Return how many, of the queue and so many behind it, no free slot is about to take."""
    n_taken = 0
    if residency.pool.n_free > 0 and not residency.is_short:
        n_cells = residency.n_obtainable()
        for sequence in islice(waiting, residency.pool.n_free):
            n_cells -= len(sequence.inputs)
            if n_cells < 0:
                break
            n_taken += 1
        else:
            n_taken += min(n_more, residency.pool.n_free - n_taken)
    return len(waiting) + n_more - n_taken
