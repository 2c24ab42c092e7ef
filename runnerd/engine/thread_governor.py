"""How many threads a forward pass should have, on cores that other processes want as well.

The threads of a pass wait for each other hundreds of times, and while one is off its core the
others spin: beside one busy process two threads on two cores can be ten times slower than one
thread, which has a core for itself. Spinning costs CPU time just as work does, so a thread that was
off its core shows: the pass took less CPU time than its threads had wall time.

That only raises a suspicion. A core can be missing for reasons that fewer threads do not help
with (a quota, a disk, threads that sleep while they wait), or now and then only (a process that
gives way to others), so passes with fewer threads have to be faster than those of the last moments
were on average; if not, the old number comes back, and what was missing is tolerated for a while.
More threads are tried where a probe that works beside a pass has had a core for itself.

Values in, a number of threads out: no clock, no thread.
"""

from dataclasses import dataclass, field
from math import exp, floor, inf, log2
from typing import Literal

Kind = Literal["decode", "embed"]

TOLERATED_CORES = 0.25  # a process at nice 10 takes a tenth of a core: not worth a whole one
LOST_S = 0.06  # core seconds beyond that: some time slices, or one pass that has collapsed
STOP_S = 0.1  # the same for a pass that is not over: to stop it costs what it was about to store
STOP_SHARE = 0.1  # of the time of such a pass: it has done too much to be stopped for less
TICK_S = 0.005  # of CPU time that the system has not counted yet, by thread that is running
WORTH = 0.95  # of the time before: what fewer threads have to do with
JUDGED_S, N_JUDGED = 0.15, 3  # passes with fewer threads are judged by no less
LONG_S = 1.0  # but where they take so long, one is enough
UNDECIDED_S = 2.0  # where no passes are alike, fewer threads stay after so long
ADDED_CORES = 0.2  # tolerated beyond what was missing while fewer threads were no faster
FORGIVING_S, MAX_FORGIVING_S = 1.0, 16.0
MEMORY_S = 0.5  # of passes before: they count by e, and by e again, less
FREE_SHARE = 0.75  # of a core for the probe; beside a busy process it has half, or 0.9 at nice 10
HOLD_S = 0.25  # until the first probe
MAX_HOLD_S = 2.0  # between probes: how late it is noticed that a core is free
MAX_FLAPPING_S = 8.0  # the same where more threads were a mistake again and again
SOON_S = 5.0  # after more threads, fewer again: a mistake
WIDTHS_PER_OCTAVE = 8  # passes are alike if their rows differ by a twelfth at most


@dataclass(frozen=True, slots=True)
class PassTime:
    """A forward pass: its rows, how long it took, and the CPU time of the whole process.

    One that is not whole was stopped, for the cores that its threads had not had.
    """

    kind: Kind
    n_rows: int
    wall_s: float
    cpu_s: float
    is_whole: bool = True


@dataclass(slots=True)
class _Passes:
    """How many passes there were, and their time, by kind and width; all with as many threads.

    Earlier ones count less and less where there is a `memory_s`.
    """

    memory_s: float = inf
    alike: dict[tuple[Kind, int], tuple[float, float]] = field(default_factory=dict)

    def add(self, passed: PassTime) -> None:
        key = (passed.kind, round(WIDTHS_PER_OCTAVE * log2(max(1, passed.n_rows))))
        kept = exp(-passed.wall_s / self.memory_s)
        n, wall_s = self.alike.get(key, (0.0, 0.0))
        self.alike[key] = (kept * n + 1, kept * wall_s + passed.wall_s)

    def compared(self, later: "_Passes") -> tuple[float, float, float]:
        """Return how many later passes have their like here; their time here, and there."""
        n_common, here_s, there_s = 0.0, 0.0, 0.0
        for key in self.alike.keys() & later.alike.keys():
            (n_here, wall_here_s), (n, wall_s) = self.alike[key], later.alike[key]
            n_common += n
            here_s += wall_here_s / n_here * n
            there_s += wall_s
        return n_common, here_s, there_s


@dataclass(slots=True)
class _Shortage:
    """Passes that together lost `lost_s` core seconds, beyond what is tolerated."""

    lost_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, passed: PassTime, n_wanted: float) -> None:
        """Count a pass that should have had so many cores; what is made up for is forgotten."""
        self.lost_s = max(0.0, self.lost_s + n_wanted * passed.wall_s - passed.cpu_s)
        if self.lost_s == 0:
            self.wall_s = self.cpu_s = 0.0
        else:
            self.wall_s += passed.wall_s
            self.cpu_s += passed.cpu_s

    @property
    def n_had(self) -> float:
        """Cores that the threads had, on average."""
        return self.cpu_s / self.wall_s


@dataclass(slots=True)
class _Trial:
    """Passes with fewer threads since an instant, and those `before`, when cores were missing."""

    since: float
    before: _Passes
    n_threads_before: int
    n_missing_before: float
    passes: _Passes = field(default_factory=_Passes)


class ThreadGovernor:
    """Chooses `n_threads`, from 1 to `n_most`, for the next pass."""

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.n_threads = n_most
        self._shortage = _Shortage()
        self._recent = _Passes(MEMORY_S)  # with this number of threads
        self._trial: _Trial | None = None  # of this number, where it is a lower one
        self._unjudged: int | None = None  # a lower number that nothing could be compared with
        self._tolerated = TOLERATED_CORES
        self._tolerates_until = 0.0
        self._forgiving_s = FORGIVING_S
        self._hold_s = HOLD_S
        self._probe_at = 0.0
        self._raised_at = -SOON_S

    def observe(self, passed: PassTime, now: float) -> None:
        """Learn from a pass that has run with `n_threads` and ended now."""
        if passed.wall_s <= 0:
            return
        self._shortage.add(passed, self.n_threads - self._tolerated_at(now))
        if not passed.is_whole:
            self._lower(passed.cpu_s / passed.wall_s, now)
            return
        if self._unjudged is not None and self.n_threads > self._unjudged:
            self._unjudged = None
        self._recent.add(passed)
        if self._trial is not None:
            self._trial.passes.add(passed)
        if self._shortage.lost_s >= LOST_S and self.n_threads > 1:
            self._lower(self._shortage.n_had, now)
        elif self._trial is not None:
            self._judge(self._trial, now)

    def should_stop(self, wall_s: float, cpu_s: float, now: float) -> bool:
        """Whether a pass that goes on has lost so much by now that fewer threads should end it.

        Where they have done so before, and there was nothing to compare them with, a pass is left
        to its end, to be that. Another thread may ask during a pass.
        """
        n = self.n_threads
        if n == 1 or (self._unjudged is not None and n > self._unjudged):
            return False
        lost_s = (n - self._tolerated_at(now)) * wall_s - cpu_s
        return lost_s >= max(STOP_S + n * TICK_S, STOP_SHARE * wall_s)

    def wants_probe(self, now: float) -> bool:
        """Whether it is time to see if there is a core to spare."""
        is_low = self.n_threads < self.n_most and self._trial is None
        return is_low and now >= self._probe_at

    def take_probe(self, share: float, now: float) -> None:
        """Learn what share of a core a thread had that worked beside a pass."""
        if not self.wants_probe(now):
            return  # the number has changed meanwhile
        if share < FREE_SHARE:
            self._hold_s = max(self._hold_s, min(1.5 * self._hold_s, MAX_HOLD_S))
            self._probe_at = now + self._hold_s
            return
        self._use(self.n_threads + 1)
        self._raised_at = now
        self._probe_at = now + HOLD_S

    def _lower(self, n_had: float, now: float) -> None:
        """Try so many threads as have had a core, one less at least."""
        is_again = now - self._raised_at < SOON_S
        self._hold_s = min(2 * self._hold_s, MAX_FLAPPING_S) if is_again else HOLD_S
        self._probe_at = now + self._hold_s
        n_before, before = self.n_threads, self._recent
        self._use(max(1, min(n_before - 1, floor(n_had + TOLERATED_CORES))))
        self._trial = _Trial(now, before, n_before, n_before - n_had)

    def _judge(self, trial: _Trial, now: float) -> None:
        """Keep fewer threads, or go back to what was before, once there is enough to compare."""
        n_alike, before_s, trial_s = trial.before.compared(trial.passes)
        if trial_s < LONG_S and (n_alike < N_JUDGED or trial_s < JUDGED_S):
            if now - trial.since >= UNDECIDED_S:
                self._trial = None
                self._unjudged = self.n_threads if n_alike == 0 else None
        elif trial_s <= WORTH * before_s:
            self._forgiving_s = FORGIVING_S
            self._trial = None
        else:
            self._tolerated = trial.n_missing_before + ADDED_CORES
            self._tolerates_until = now + self._forgiving_s
            self._forgiving_s = min(2 * self._forgiving_s, MAX_FORGIVING_S)
            self._use(trial.n_threads_before)

    def _tolerated_at(self, now: float) -> float:
        return self._tolerated if now < self._tolerates_until else TOLERATED_CORES

    def _use(self, n_threads: int) -> None:
        """Take another number, of which nothing is known yet."""
        self.n_threads = n_threads
        self._shortage, self._recent, self._trial = _Shortage(), _Passes(MEMORY_S), None
