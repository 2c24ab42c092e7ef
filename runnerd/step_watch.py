"""The step and the encode in progress: since when they run, and whether that is too long.

And what else shows that the decode loop goes round: its pulse.
"""

from collections.abc import Callable
from time import monotonic

import anyio


class Pulse:
    """Of the decode loop: `n_beats` steps and passes have ended well; `is_resting` when idle."""

    def __init__(self) -> None:
        self.n_beats = 0
        self.is_resting = False


class StepWatch:
    """Calls `tell` when a step has taken `limit_s`, and again when it has ended at last."""

    def __init__(self, limit_s: float, tell: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._tell = tell
        self._started_at: float | None = None
        self._is_working = anyio.Event()
        self._has_ended = anyio.Event()
        self._has_new_limit = anyio.Event()

    @property
    def is_running(self) -> bool:
        """Whether a step is in progress."""
        return self._started_at is not None

    @property
    def age_s(self) -> float:
        """Age of the step in progress; 0 when there is none."""
        return 0.0 if self._started_at is None else monotonic() - self._started_at

    @property
    def is_late(self) -> bool:
        """Whether the step in progress has taken too long."""
        return self.age_s >= self._limit_s

    def set_limit(self, limit_s: float) -> None:
        """Let another limit hold, also for the step in progress."""
        self._limit_s = limit_s
        self._has_new_limit.set()
        self._has_new_limit = anyio.Event()
        self._has_ended.set()  # or may not be late any more

    def begin(self, now: float) -> None:
        """Note that a step begins."""
        self._started_at = now
        self._is_working.set()

    def end(self) -> None:
        """Note that it has ended, well or not."""
        self._started_at = None
        self._has_ended.set()

    def rest(self) -> None:
        """Note that no step is likely soon."""
        self._is_working = anyio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._is_working.wait()
            left_s = self._limit_s - self.age_s
            if left_s > 0:
                with anyio.move_on_after(left_s):
                    await self._has_new_limit.wait()
                continue
            self._has_ended = anyio.Event()
            self._tell()
            await self._has_ended.wait()
            self._tell()


class Watches:
    """Those of the steps and of the encodes, whose `limit_s` is the same."""

    def __init__(self, limit_s: float, tell: Callable[[], None]) -> None:
        self.step = StepWatch(limit_s, tell)
        self.encode = StepWatch(limit_s, tell)

    def set_limit(self, limit_s: float) -> None:
        """Let another limit hold from now on."""
        self.step.set_limit(limit_s)
        self.encode.set_limit(limit_s)

    @property
    def stalled(self) -> str:
        """Which takes too long, as the wire's `Status` says it; empty if none does."""
        if self.step.is_late:
            return "step"
        return "encode" if self.encode.is_late else ""

    @property
    def age_s(self) -> float:
        """Age of what runs longest; 0 if nothing does."""
        return max(self.step.age_s, self.encode.age_s)
