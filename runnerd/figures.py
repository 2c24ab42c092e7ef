"""What a runner counts, and how fast it has been of late."""

from collections import deque
from typing import Literal

from runnerd.core.sequence import FinishReason, Sequence
from runnerd.errors import QueueTimeout, RequestError

RATE_WINDOW_S = 5.0  # what "tokens per second" looks back on


class Figures:
    """Counters from the start on; fields as in the wire's `Status`.

    `n_requests` were accepted, `n_failed` of them failed: each counts once. Of completions, which
    are `n` to a request, those are counted that were cancelled or ran out of time, begun or not.
    What sequences have cost is counted when they end.
    """

    def __init__(self, started_at: float) -> None:
        self.n_steps = 0
        self.n_requests = 0
        self.n_failed = 0
        self.n_generated_tokens = 0
        self.n_cached_tokens = 0
        self.n_cancelled = 0
        self.n_timed_out = 0
        self.n_suspended = 0
        self.n_shifts = 0
        self.n_embedded = 0
        self.n_embeds = 0
        self.n_embeds_failed = 0
        self.n_images_encoded = 0
        self.encode_s = 0.0
        self.queue_s = 0.0
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.sampling_s = 0.0
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

    def count_end(
        self, sequence: Sequence, ending: FinishReason | RequestError, now: float
    ) -> None:
        """Count a sequence that has ended now."""
        timings = sequence.timings
        self.n_cancelled += ending == "cancelled"
        self.n_timed_out += ending == "timeout" or isinstance(ending, QueueTimeout)
        self.n_cached_tokens += sequence.n_cached
        self.n_suspended += sequence.n_suspended
        self.n_shifts += sequence.n_shifts
        self.queue_s += timings.queue_s(now)
        self.prefill_s += timings.prefill_s(now)
        self.decode_s += timings.decode_s()
        self.sampling_s += timings.sampling_s

    def count_unbegun(
        self, n_completions: int, ending: Literal["cancelled", "timeout"], waited_s: float
    ) -> None:
        """Count completions that ended before there were sequences for them."""
        if ending == "cancelled":
            self.n_cancelled += n_completions
        else:
            self.n_timed_out += n_completions
        self.queue_s += n_completions * waited_s

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
