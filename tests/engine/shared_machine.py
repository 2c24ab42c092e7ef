"""A machine that a daemon's passes share with other processes: what its scheduler does to them.

Threads of a team that are off their core hold up the whole team, which spins meanwhile.
"""

import random
from collections.abc import Callable, Sequence
from itertools import cycle
from statistics import fmean

from runnerd.engine.thread_governor import PassTime, ThreadGovernor

SLICE_S = 0.004
LOOK_S = 0.05
PROBE_S = 0.05
N_LOOKS = 50
HIT_S = 0.003
BUSY, NICE = 1.0, 0.1  # weights of another process's thread, ours has 1
WHOLE = 1e6  # has a core to itself while it wants it
COLLAPSE = 8.0  # how much longer a pass takes if one of its threads has half a core

Others = Callable[[float], Sequence[float]]


def nobody(_now: float) -> Sequence[float]:
    """Nothing else runs."""
    return ()


def always(*weights: float) -> Others:
    """Threads of other processes that never rest."""
    return lambda _now: weights


def by_turns(on_s: float, off_s: float, *weights: float) -> Others:
    """Threads that work for a while and rest for a while."""
    return lambda now: weights if now % (on_s + off_s) < on_s else ()


class SharedMachine:
    """Cores, their other users, and a clock that passes move on.

    `quota`: cores that the daemon may use. `sleeps`: the share of a core that each thread of a team
    but one sleeps for want of work. `noise`: how often a second something takes a core for 3 ms.
    """

    def __init__(
        self,
        n_cores: int = 2,
        others: Others = nobody,
        *,
        quota: float | None = None,
        sleeps: float = 0.0,
        noise: float = 2.0,
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self.work_s = 0.0  # done, as the time it takes with all cores idle
        self.full_s = 0.0  # spent with the greatest number of threads
        self._n_cores = n_cores
        self._others = others
        self._quota = quota
        self._sleeps = sleeps
        self._noise = noise
        self._random = random.Random(seed)

    def run(self, governor: ThreadGovernor, rows: Sequence[int], until: float) -> None:
        """Run passes of so many rows, again and again, until a time."""
        probe: tuple[float, float] | None = None
        for n_rows in cycle(rows):
            if self.now >= until:
                return
            if probe is not None and self.now >= probe[0]:
                governor.take_probe(probe[1], self.now)
                probe = None
            elif probe is None and governor.wants_probe(self.now):
                probe = self.now + PROBE_S, self._share(governor.n_threads)
            passed = self._pass(governor, n_rows)
            if governor.n_threads == governor.n_most:
                self.full_s += passed.wall_s
            self.work_s += passed.is_whole * self._idle_s(n_rows, governor.n_most)
            governor.observe(passed, self.now)

    def rest(self, seconds: float) -> None:
        """Let time go by without a pass."""
        self.now += seconds

    def _pass(self, governor: ThreadGovernor, n_rows: int) -> PassTime:
        """Run a pass; of one that is stopped nothing is kept."""
        n_threads = governor.n_threads
        began_at, look_at, cpu_s = self.now, self.now + LOOK_S, 0.0
        left_s = self._idle_s(n_rows, n_threads) * self._random.lognormvariate(0, 0.02)
        if self._random.random() < self._noise * left_s:  # one thread is off its core, all wait
            self.now += HIT_S
            cpu_s += HIT_S * (n_threads - 1)
        while left_s > 0:
            speed, n_busy = self._condition(n_threads)
            took_s = min(SLICE_S, left_s / speed)
            left_s -= took_s * speed
            cpu_s += took_s * n_busy
            self.now += took_s
            if self.now >= look_at:
                look_at += LOOK_S
                wall_s = self.now - began_at
                if governor.should_stop(wall_s, cpu_s, self.now):
                    return PassTime("decode", n_rows, wall_s, cpu_s, is_whole=False)
        return PassTime("decode", n_rows, self.now - began_at, cpu_s)

    def _condition(self, n_threads: int) -> tuple[float, float]:
        """Return the speed of a pass, and how many threads of it have a core, on average."""
        others = sorted(self._others(self.now), reverse=True)
        n_over = min(n_threads, max(0, n_threads + len(others) - self._n_cores))
        lost = sum(weight / (1 + weight) for weight in others[:n_over])
        n_busy = n_threads - lost
        n_busy -= self._sleeps * (n_threads - 1)
        speed = 1 - lost if n_threads == 1 else 1 / (1 + 2 * (COLLAPSE - 1) * lost)
        if self._quota is not None and n_busy > self._quota:
            speed, n_busy = speed * self._quota / n_busy, self._quota
        return speed, n_busy

    def _share(self, n_threads: int) -> float:
        """Return what a probe sees that begins now: the share that one more thread has."""
        instants = (self.now + PROBE_S * n / N_LOOKS for n in range(N_LOOKS))
        return fmean(self._share_at(instant, n_threads) for instant in instants)

    def _share_at(self, instant: float, n_threads: int) -> float:
        others = self._others(instant)
        is_free = n_threads + 1 + len(others) <= self._n_cores
        return 1.0 if is_free else 1 / (1 + max(others, default=1.0))

    @staticmethod
    def _idle_s(n_rows: int, n_threads: int) -> float:
        return (0.008 + 0.003 * n_rows) * 2 / float(n_threads**0.95)
