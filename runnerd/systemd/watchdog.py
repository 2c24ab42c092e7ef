"""Pings for systemd's watchdog, that are worth something: sd_watchdog_enabled(3).

They come from a task of the event loop, so a loop that stands still sends none: one that is
blocked, and one that waits for a native call which keeps the interpreter's lock. A loop that was
late has to be in time once, and `doubt` has to know of nothing, before another ping is sent.
"""

from collections.abc import Callable

import anyio
import structlog

from runnerd.systemd.notifier import Notifier

log = structlog.get_logger()

PINGS_PER_PERIOD = 3
SHORTEST_S = 0.1  # between pings, however short the period: more would be a flood
LONGEST_S = 60.0  # likewise, however long
CHECKS_PER_PING = 4  # while none is sent: what goes on again is to be told soon


class Watchdog:
    """Pings at least every `period_s`, as long as `doubt` returns no reason not to."""

    def __init__(self, period_s: float, notifier: Notifier, doubt: Callable[[], str]) -> None:
        self._interval_s = min(max(period_s / PINGS_PER_PERIOD, SHORTEST_S), LONGEST_S)
        self._notifier = notifier
        self._doubt = doubt
        self._is_withheld = False

    async def run(self) -> None:
        """Ping until cancelled."""
        self._notifier.ping()
        pause_s = self._interval_s
        while True:
            due_at = anyio.current_time() + pause_s
            await anyio.sleep_until(due_at)
            late_s = anyio.current_time() - due_at
            if late_s > self._interval_s:
                cause = f"the event loop was {late_s:.1f} s late"
            else:
                cause = self._doubt()
            if cause:
                self._withhold(cause)
                pause_s = max(self._interval_s / CHECKS_PER_PING, SHORTEST_S)
            else:
                self._resume()
                self._notifier.ping()
                pause_s = self._interval_s

    def _withhold(self, cause: str) -> None:
        if not self._is_withheld:
            self._is_withheld = True
            log.error("watchdog.withheld", cause=cause)
            self._notifier.stalled(cause)

    def _resume(self) -> None:
        if self._is_withheld:
            self._is_withheld = False
            log.info("watchdog.resumed")
            self._notifier.resumed()
