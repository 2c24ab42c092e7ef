"""How far a load is: phases in a fixed order, and fractions that never go back."""

from collections.abc import Callable

from runnerd.engine.base import LoadProgress
from runnerd.errors import LoadCancelled

PHASES = ("open", "weights", "projector", "context", "warm-up")
NEARLY = 0.99  # what a repeated part of a load may reach of a phase that is still to be done


class Phases:
    """Reports the phases of a load, and stops it where the answer is no.

    What is done a second time, since the first try has failed, is told as headway within the
    phase that had been reached: whoever watches sees that it moves, and never back.
    """

    def __init__(self, progress: LoadProgress) -> None:
        self._progress = progress
        self._error: BaseException | None = None
        self._furthest = (0, 0.0)  # of all that was reported
        self._last = (0, 0.0)  # reported
        self._told = 0.0  # of the phase that is furthest
        self._begun_at = 0.0  # what was told when the load went back

    def reach(self, phase: str, fraction: float) -> None:
        """Report; raises LoadCancelled, or what `progress` raises."""
        at = (PHASES.index(phase), min(fraction, 1.0))
        if at < self._last:
            self._begun_at = self._told
        if at[0] > self._furthest[0]:
            self._told = at[1]
        elif at >= self._furthest:
            self._told = max(self._told, at[1])
        elif self._begun_at < NEARLY:
            share = sum(at) / sum(self._furthest)
            again = self._begun_at + (NEARLY - self._begun_at) * share
            self._told = max(self._told, again)
        self._last, self._furthest = at, max(at, self._furthest)
        told = PHASES[self._furthest[0]]
        if not self._progress(told, self._told):
            raise LoadCancelled(f"told to stop at {self._told:.0%} of phase {told!r}")

    def native(
        self, phase: str, begin: float = 0.0, end: float = 1.0
    ) -> Callable[[float, int | None], bool]:
        """Return a callback for llama.cpp, through which no exception can pass.

        What it reports is a part of the phase, from `begin` to `end`.
        """

        def callback(fraction: float, _user_data: int | None) -> bool:
            if self._error is None:
                try:
                    self.reach(phase, begin + (end - begin) * min(fraction, 1.0))
                except BaseException as err:  # also KeyboardInterrupt: raised again below
                    self._error = err
            return self._error is None

        return callback

    def check(self) -> None:
        """Raise what stopped the callback."""
        if self._error is not None:
            raise self._error
