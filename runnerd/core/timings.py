"""Where a request's time went, from instants passed in (seconds, monotonic)."""

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

BIN = 1.08  # a bin of gaps ends at so many times its beginning: told to within 4 %
LEAST_MS = 1e-3  # shorter gaps are counted as this long
N_BINS = 300  # up to 3 hours; longer gaps are counted as this long
BIN_STOPS_MS = [LEAST_MS * BIN**n for n in range(1, N_BINS + 1)]


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


class Gaps:
    """Gaps between tokens, counted by length: bounded memory for any number of them."""

    def __init__(self) -> None:
        self._counts = [0] * (N_BINS + 1)

    def add(self, gap_ms: float) -> None:
        """Count a gap."""
        self._counts[bisect(BIN_STOPS_MS, gap_ms)] += 1

    def percentile(self, share: float) -> float:
        """Return the least length that `share` of the gaps do not exceed; 0.0 of none."""
        n_left = ceil(sum(self._counts) * share)
        if n_left == 0:
            return 0.0
        n_bin = next(n for n, n_within in enumerate(accumulate(self._counts)) if n_within >= n_left)
        middle_ms: float = LEAST_MS * BIN ** (n_bin + 0.5)
        return middle_ms


class Timings:
    """The instants of one sequence; `sampling_s` were spent on picking its tokens."""

    def __init__(self, queued_at: float) -> None:
        self.sampling_s = 0.0
        self._queued_at = queued_at
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._last_token_at = queued_at
        self._gaps = Gaps()

    def start(self, now: float) -> None:
        """Note that the sequence got its slot; whatever it waits for after that is prefill."""
        if self._started_at is None:
            self._started_at = now

    def token(self, now: float) -> None:
        """Note that a token was sampled."""
        if self._first_token_at is None:
            self._first_token_at = now
        else:
            self._gaps.add((now - self._last_token_at) * 1e3)
        self._last_token_at = now

    def queue_s(self, now: float) -> float:
        """Return the time from arrival to the slot, or until `now`."""
        return self._until(self._started_at, now) - self._queued_at

    def age_s(self, now: float) -> float:
        """Return the time since the sequence got its slot."""
        return now - self._until(self._started_at, now)

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
        return TimingSummary(
            queue_ms=self.queue_s(now) * 1e3,
            ttft_ms=(first_token_at - self._queued_at) * 1e3,
            itl_p50_ms=self._gaps.percentile(0.50),
            itl_p95_ms=self._gaps.percentile(0.95),
            total_ms=(now - self._queued_at) * 1e3,
            prefill_ms=self.prefill_s(now) * 1e3,
            decode_ms=self.decode_s() * 1e3,
            sampling_ms=self.sampling_s * 1e3,
        )
