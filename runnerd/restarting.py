"""When a child that has died is started again: after a while, and not for ever."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Restart:
    """At most `max_restarts` within any `window_s`.

    The first comes after `first_delay_s`, and each further one within the window after twice the
    delay of the one before, `max_delay_s` at most.
    """

    max_restarts: int = 5
    window_s: float = 60.0
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0


class Backoff:
    """Counts the restarts of one runner."""

    def __init__(self, policy: Restart) -> None:
        self.policy = policy
        self._restarts_at: deque[float] = deque()

    def next_delay_s(self, now: float) -> float | None:
        """Return how long to wait before a restart, None if there were too many; counts it."""
        while self._restarts_at and now - self._restarts_at[0] >= self.policy.window_s:
            self._restarts_at.popleft()
        n_recent = len(self._restarts_at)
        if n_recent >= self.policy.max_restarts:
            return None
        self._restarts_at.append(now)
        # Bounded before it is a power: a float holds no 2 ** 2000.
        return min(self.policy.first_delay_s * 2.0 ** min(n_recent, 64), self.policy.max_delay_s)
