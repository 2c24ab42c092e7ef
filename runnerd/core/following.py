"""Waiting for a prefix that another sequence is evaluating right now.

Evaluated twice it would take both longer, since all prompts share a step's rows. A sequence
follows only those that got their slots before it; so somebody at the head of every chain gets
on, or is paused and followed no longer.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from runnerd.core.batch import COPY_ROWS, Limits
from runnerd.core.prefix import MIN_WAIT
from runnerd.core.prompt import common_prefix
from runnerd.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Pace:
    """How prompts get on: so many rows a step, dealt to so many that have so many left."""

    n_rows: int
    n_in_ring: int
    n_pending: int

    def repays(self, n_saved: int, n_ahead: int, n_own: int) -> bool:
        """Whether it repays to wait for `n_ahead` rows of another, to have `n_saved` of `n_own`.

        While one step can take all that there is, every row saved makes that step shorter. Full
        steps take as long without whoever waits, who misses a turn of each, and of one at least.
        """
        if self.n_pending + n_own <= self.n_rows:
            return True
        n_in_ring = max(1, self.n_in_ring)
        return n_saved * (n_in_ring + 1) >= max(self.n_rows, n_ahead * n_in_ring)


def find_leader(
    sequence: Sequence, earlier: Iterable[Sequence], n_cached: int, limits: Limits, pace: Pace
) -> tuple[Sequence, int] | None:
    """Return whom to wait for, and for how many inputs, if that is worth it.

    The longest common prefix wins, then one that is not waiting itself, then the oldest.
    """
    n_most = len(sequence.inputs) - 1
    best: Sequence | None = None
    n_best = n_cached + (MIN_WAIT if limits.is_unified else COPY_ROWS) - 1
    n_own = len(sequence.inputs) - n_cached
    if n_most <= n_best:
        return None
    for other in earlier:
        # One look decides for most; whole prefixes are compared for the promising.
        if len(other.inputs) < n_best or other.inputs[n_best - 1] != sequence.inputs[n_best - 1]:
            continue
        n_common = _n_common(sequence, other, n_most)
        is_sooner = best is not None and best.follows is not None and other.follows is None
        if n_common < n_best or (n_common == n_best and not is_sooner):
            continue
        if pace.repays(n_common - n_cached, n_common - other.n_past, n_own):
            best, n_best = other, n_common
    return None if best is None else (best, n_best)


def follow(
    sequence: Sequence, earlier: Iterable[Sequence], n_cached: int, limits: Limits, pace: Pace
) -> bool:
    """Let a sequence wait for another if that is worth it; return whether it does."""
    found = find_leader(sequence, earlier, n_cached, limits, pace)
    if found is None:
        return False
    sequence.follows, sequence.n_awaited = found
    if limits.needs_checkpoints:
        _halt_near(*found)
    return True


def _n_common(sequence: Sequence, other: Sequence, n_most: int) -> int:
    """Return how much of a prompt another sequence has yet to evaluate, with what is before."""
    if other.n_pending < 2 or other.paused or other.suspended_at is not None:
        return 0
    if other.options.cache_key != sequence.options.cache_key or other.ending is not None:
        return 0
    n_clean = n_most if other.n_shifts == 0 else min(n_most, other.n_keep)
    n_common = common_prefix(sequence.inputs, other.inputs, n_clean)
    n_common = sequence.layout.cut_start(n_common)
    return n_common if n_common > other.n_past else 0


def _halt_near(leader: Sequence, n_awaited: int) -> None:
    """Let a sequence stop for a checkpoint where another is to go on from."""
    if not any(n_awaited - MIN_WAIT < halt <= n_awaited for halt in leader.halts):
        insort(leader.halts, n_awaited)


def is_over(sequence: Sequence) -> bool:
    """Whether the wait of a sequence is over: what it waits for is there, or not to come."""
    leader = sequence.follows
    return leader is not None and (leader.paused or leader.n_past >= sequence.n_awaited)


def abandon(leader: Sequence, running: Iterable[Sequence]) -> None:
    """Let nobody wait for a sequence any longer: it has ended, or lost what it had."""
    for sequence in running:
        if sequence.follows is leader:
            sequence.n_awaited = 0
