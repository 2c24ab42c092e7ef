"""The last thing that went wrong, told to those who watch a daemon.

They see the requests of all clients, but not what is in them: an error that quotes its request
is told without the quotation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from runnerd.errors import (
    BadGrammar,
    Cancelled,
    InvalidMedia,
    InvalidRequest,
    RequestError,
    ShuttingDown,
)
from runnerd.failure import Failure
from runnerd.harmless import harmless_line

TELL_S = 0.1  # errors are told at once at most this often, else with what is told anyway
MOST_CHARS = 500


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error, of what kind it is and what it says: on one line, and not a long one."""

    code: str = ""
    text: str = ""


class Troubles:
    """Keeps the `last` of the errors that requests have met. `tell` is called when there is one."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.last = Trouble()
        self._tell = tell
        self._told_at = float("-inf")

    def note(self, err: RequestError) -> None:
        """Keep an error, unless it is none but what somebody wanted."""
        if isinstance(err, Cancelled | ShuttingDown):
            return
        self.last = Trouble(err.code, harmless_line(_public_text(err), MOST_CHARS))
        now = monotonic()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            self._tell()


def trouble_of(failure: Failure) -> Trouble:
    """Return why the daemon has failed."""
    return Trouble(failure.code, harmless_line(failure.text, MOST_CHARS))


def _public_text(err: RequestError) -> str:
    match err:
        case InvalidRequest():
            return f"a request was refused for its {err.details['field']}"
        case InvalidMedia():
            return f"an image was refused, expected {err.limit}"
        case BadGrammar():
            return "a grammar or JSON schema was refused"
        case _:
            return str(err)
