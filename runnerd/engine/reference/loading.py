"""Loading, phase by phase: it takes its time, reports how far it is, and can be stopped."""

import time

from runnerd.engine.base import LoadProgress
from runnerd.engine.reference.pace import Pace
from runnerd.errors import LoadCancelled

PHASES = ("open", "weights", "context", "warm-up")
N_FRACTIONS = 4  # reports within each phase


class Loading:
    """Tells `progress` of the phases of a load that takes at least `load_ms`."""

    def __init__(self, load_ms: int, pace: Pace, progress: LoadProgress) -> None:
        self._wait_s = load_ms / 1e3 / len(PHASES) / N_FRACTIONS
        self._progress = progress
        self._pace = pace

    def phase(self, name: str) -> None:
        """Go through a phase.

        Raises:
            LoadCancelled: `progress` returned False.
        """
        assert name in PHASES, name
        for done in range(N_FRACTIONS + 1):
            if not self._progress(name, done / N_FRACTIONS):
                raise LoadCancelled(f"reference engine: the load was stopped at {name}")
            if self._wait_s and done < N_FRACTIONS:
                self._pace.wait_until(time.monotonic() + self._wait_s)
