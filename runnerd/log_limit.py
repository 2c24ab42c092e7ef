"""How much may be logged: a burst of each event, then a trickle, and a count of the rest.

A line costs one token of its event's allowance, and more if it is long. All warnings and errors
together are held to a number of bytes as well, so that no mixture of them fills a disk either.
What happens once in the life of a daemon is always logged.

There is no lock: a thread that logs must not wait for another. Two that log the same event at
the same instant may be counted as one.
"""

from dataclasses import dataclass

LIFE_CYCLE = "daemon."  # events that are never held back
TOKEN_BYTES = 500  # what one token pays for
TELL_S = 1.0  # how long lines are counted before the count is told

# Burst and tokens per second. Requests that end well are wanted in the log; each kind of trouble
# is known after some lines. Whoever asks for debug lines wants them, within reason.
FINISHED = (20, 70)
FAILED = (40, 20)
OTHERS = (20, 10)
DEBUG = (400, 200)
# Of everything but requests that end well, in bytes: 600 kB in a minute, and native lines, which
# another process holds to less than half of that. A short line counts as if it were longer: all
# lines of any second, with requests' ends and native ones, are less than 200.
ALL_BYTES = (8_000, 10_000)
LEAST_BYTES = 250

RATES = {"request.finished": FINISHED, "request.failed": FAILED}


class Allowance:
    """Tokens: at most `burst`, and so many more per second. They may be overdrawn once."""

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._n_left = burst
        self._counted_at = float("-inf")

    def has_any(self, now: float) -> bool:
        """Say whether there is a token, of those that have come until now."""
        elapsed_s = now - self._counted_at
        self._n_left = min(self._burst, self._n_left + elapsed_s * self._per_s)
        self._counted_at = now
        return self._n_left >= 1

    def take(self, n_tokens: float) -> None:
        """Take them, also if there are not as many."""
        self._n_left -= n_tokens


def tokens_for(n_bytes: int) -> float:
    """Return what a line costs."""
    return max(1.0, n_bytes / TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """So many lines of an event were not logged, and would have been at this level."""

    level: str
    event: str
    n_lines: int


class LogLimits:
    """Admits lines and counts those that it does not. Times in seconds, monotonic."""

    def __init__(self) -> None:
        self._allowances: dict[tuple[str, bool], Allowance] = {}
        self._all_bytes = Allowance(*ALL_BYTES)
        self._suppressed: dict[tuple[str, str], int] = {}
        self._tell_at = 0.0

    def admits(self, level: str, event: str, now: float) -> bool:
        """Say whether a line may be logged; if not, it is counted."""
        if event.startswith(LIFE_CYCLE):
            return True
        if self._allowance(level, event).has_any(now) and (
            not _shares_bytes(level, event) or self._all_bytes.has_any(now)
        ):
            return True
        if not self._suppressed:
            self._tell_at = now + TELL_S
        self._suppressed[level, event] = self._suppressed.get((level, event), 0) + 1
        return False

    def charge(self, level: str, event: str, n_bytes: int) -> None:
        """Take what a line that was admitted has cost."""
        if event.startswith(LIFE_CYCLE):
            return
        self._allowance(level, event).take(tokens_for(n_bytes))
        if _shares_bytes(level, event):
            self._all_bytes.take(max(n_bytes, LEAST_BYTES))

    def take_suppressed(self, now: float, *, at_once: bool = False) -> list[Suppressed]:
        """Return the counts, once they are a second old or all is to be told; then forget them."""
        if not self._suppressed or (now < self._tell_at and not at_once):
            return []
        taken, self._suppressed = self._suppressed, {}
        return [Suppressed(level, event, n_lines) for (level, event), n_lines in taken.items()]

    def _allowance(self, level: str, event: str) -> Allowance:
        key = (event, level == "debug")
        found = self._allowances.get(key)
        if found is None:
            rate = DEBUG if level == "debug" else RATES.get(event, OTHERS)
            found = self._allowances.setdefault(key, Allowance(*rate))
        return found


def _shares_bytes(level: str, event: str) -> bool:
    return level != "debug" and event != "request.finished"
