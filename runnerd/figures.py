"""What a runner counts, and how fast it has been of late."""

from collections import deque

RATE_WINDOW_S = 5.0  # what "tokens per second" looks back on


class Figures:
    """Counters from the start on. `n_failed` of the `n_requests` that were accepted failed."""

    def __init__(self, started_at: float) -> None:
        self.n_steps = 0
        self.n_requests = 0
        self.n_failed = 0
        self.n_generated_tokens = 0
        self.step_s = 0.0
        self._started_at = started_at
        self._recent: deque[tuple[float, int]] = deque()

    def count_step(self, n_sampled: int, now: float, elapsed_s: float) -> None:
        """Count a step that has ended now."""
        self.n_steps += 1
        self.step_s = elapsed_s
        self._recent.append((now, n_sampled))
        while self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()

    def uptime_s(self, now: float) -> float:
        """Return the seconds since the start."""
        return now - self._started_at

    def tokens_per_s(self, now: float) -> float:
        """Return the tokens sampled per second, lately."""
        if len(self._recent) < 2:
            return 0.0
        n_tokens = sum(n for _, n in self._recent) - self._recent[0][1]
        elapsed_s = now - self._recent[0][0]
        return n_tokens / max(elapsed_s, 1e-3) if elapsed_s < 2 * RATE_WINDOW_S else 0.0
