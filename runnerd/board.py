"""The daemon's status, for all who ask for it: made once for those who look at the same moment."""

from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from runnerd.condition import status
from runnerd.runner import Runner
from runnerd_protocol.messages import Status

MOMENT_S = 0.01  # a fifth of the shortest interval: what subscribers hear is hardly older


class Board:
    """Shows how a daemon is doing; `n_connections` is asked for how many it serves."""

    def __init__(self, runner: Runner, n_connections: Callable[[], int]) -> None:
        self._runner = runner
        self._n_connections = n_connections
        self._shown: Status | None = None
        self._shown_at = 0.0
        self._shown_before = runner.changed  # what is set at the next change

    def status(self, request_id: int) -> Status:
        """Return how the daemon is doing right now, as the last word to a request."""
        return status(request_id, self._runner, self._n_connections(), last=True)

    def news(self, request_id: int) -> Status:
        """Return how it is doing, as of a moment ago at most, and of the last change."""
        now, changed = monotonic(), self._runner.changed
        is_old = now - self._shown_at >= MOMENT_S or changed is not self._shown_before
        if self._shown is None or is_old:
            self._shown = status(request_id, self._runner, self._n_connections(), last=False)
            self._shown_at, self._shown_before = now, changed
        return replace(self._shown, request_id=request_id)
