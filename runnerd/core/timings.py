"""Where a request's time went, from instants passed in (seconds, monotonic)."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class TimingSummary:
    """Milliseconds; fields as in the wire's `Timings`."""

    queue_ms: float
    ttft_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    total_ms: float
    prefill_ms: float
    decode_ms: float
    sampling_ms: float


class Timings:
    """The instants of one sequence; `sampling_s` were spent on picking its tokens."""

    def __init__(self, queued_at: float) -> None:
        self.sampling_s = 0.0
        self._queued_at = queued_at
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._last_token_at = queued_at
        self._gaps_ms = array("f")

    def start(self, now: float) -> None:
        """Note that a step took the sequence for the first time."""
        if self._started_at is None:
            self._started_at = now

    def token(self, now: float) -> None:
        """Note that a token was sampled."""
        if self._first_token_at is None:
            self._first_token_at = now
        else:
            self._gaps_ms.append((now - self._last_token_at) * 1e3)
        self._last_token_at = now

    def queue_s(self, now: float) -> float:
        """Return the time from arrival to the first step, or until `now`."""
        return self._until(self._started_at, now) - self._queued_at

    def prefill_s(self, now: float) -> float:
        """Return the time from there to the first token, or until `now`."""
        return self._until(self._first_token_at, now) - self._until(self._started_at, now)

    def decode_s(self) -> float:
        """Return the time from the first token to the last."""
        return self._last_token_at - self._until(self._first_token_at, self._last_token_at)

    @staticmethod
    def _until(at: float | None, now: float) -> float:
        return now if at is None else at

    def summary(self, now: float) -> TimingSummary:
        """Return where the time went until `now`. Times that never came are those of `now`."""
        first_token_at = self._until(self._first_token_at, now)
        gaps = sorted(self._gaps_ms)
        return TimingSummary(
            queue_ms=self.queue_s(now) * 1e3,
            ttft_ms=(first_token_at - self._queued_at) * 1e3,
            itl_p50_ms=percentile(gaps, 0.50),
            itl_p95_ms=percentile(gaps, 0.95),
            total_ms=(now - self._queued_at) * 1e3,
            prefill_ms=self.prefill_s(now) * 1e3,
            decode_ms=self.decode_s() * 1e3,
            sampling_ms=self.sampling_s * 1e3,
        )


def percentile(ascending: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed; 0.0 of none."""
    if not ascending:
        return 0.0
    return ascending[max(0, ceil(len(ascending) * share) - 1)]
