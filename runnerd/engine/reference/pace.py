"""Waiting that can be cut short, and the wish to stop decodes. Safe from any thread."""

import threading
import time


class Pace:
    """Makes work take its time, until it is aborted or the engine is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.is_aborted = False
        self.is_closed = False

    def set_abort(self, wanted: bool) -> None:
        """Stop the decode in progress and those to come, or let them run again."""
        with self._changed:
            self.is_aborted = wanted
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def wait_until(self, instant: float) -> None:
        """Wait for an instant of `time.monotonic`, an abort or the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_aborted or self.is_closed, timeout=instant - time.monotonic()
            )
