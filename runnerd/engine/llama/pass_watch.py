"""Stops a pass whose threads have lost their cores, so that it can go on with fewer.

Beside a process that takes a core, a pass over a thousand rows can take a minute instead of
seconds, and only its end would show that. So a thread looks at the pass in progress all the time,
and uses the switch that cancels passes: what is stored of it by then is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from time import monotonic, process_time

from runnerd.engine.llama.abort import AbortSwitch

LOOK_S = 0.05
ASLEEP_S = 0.5  # who looks so much later was stopped, and so was all the rest of the process

Lost = Callable[[float, float, float], bool]
"""Told the wall time and the CPU time that a pass has had, and the time; should it be stopped?"""


@dataclass(slots=True)
class RunningPass:
    """A pass in progress; without a switch it is left to its end."""

    began_at: float
    had_s: float
    abort: AbortSwitch | None
    was_stopped: bool = False

    def spent(self) -> tuple[float, float]:
        """Return the wall time since it began, and the CPU time of the process meanwhile."""
        return monotonic() - self.began_at, process_time() - self.had_s


class PassWatch:
    """Looks at the passes of one thread, from another one that sleeps where there are none."""

    def __init__(self, is_lost: Lost) -> None:
        self._is_lost = is_lost
        self._lock = Lock()
        self._running: RunningPass | None = None
        self._has_work, self._is_closed = Event(), Event()
        Thread(target=self._look, name="pass-watch", daemon=True).start()

    def begin(self, abort: AbortSwitch | None) -> RunningPass:
        """Look at a pass from now on."""
        began = RunningPass(monotonic(), process_time(), abort)
        with self._lock:
            self._running = began
            if not self._has_work.is_set():
                self._has_work.set()
        return began

    def end(self) -> None:
        """Look at it no longer; its switch is as it was."""
        with self._lock:
            ended, self._running = self._running, None
            if ended is not None and ended.abort is not None and ended.was_stopped:
                ended.abort.give_way(False)

    def close(self) -> None:
        """Let the thread end."""
        self._is_closed.set()
        self._has_work.set()

    def _look(self) -> None:
        self._has_work.wait()
        looks_at = monotonic() + LOOK_S
        while not self._is_closed.wait(LOOK_S):
            late_s = monotonic() - looks_at
            self._look_once(late_s if late_s > ASLEEP_S else 0.0)
            self._has_work.wait()
            looks_at = monotonic() + LOOK_S

    def _look_once(self, asleep_s: float) -> None:
        with self._lock:
            running = self._running
            if running is None:
                self._has_work.clear()
                return
            running.began_at += asleep_s
            if running.abort is not None and not running.was_stopped:
                wall_s, cpu_s = running.spent()
                running.was_stopped = self._is_lost(wall_s, cpu_s, monotonic())
                if running.was_stopped:
                    running.abort.give_way(True)
