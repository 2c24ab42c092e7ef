"""One line for each request, at its end: what it was, how it ended, and what that took.

There are only numbers and words of ours in it: nothing that a client has written, and nothing
that it was answered.
"""

from time import monotonic

import structlog

from runnerd.errors import Cancelled, Details, RequestError
from runnerd_protocol import messages as wire
from runnerd_protocol.errors import FAILED_CODES

log = structlog.get_logger()

Number = int | float

RequestMessage = (
    wire.Generate
    | wire.Tokenize
    | wire.Detokenize
    | wire.GetStatus
    | wire.Subscribe
    | wire.GetModel
    | wire.Embed
    | wire.Plan
)
# The others are answered at once, and polled for by some: their lines are for a debugger.
TAKES_THE_ENGINE = wire.Generate | wire.Embed | wire.Plan

GRAVE = {code for code, meaning in FAILED_CODES.items() if meaning.who != "client"}
FULL = {code for code, meaning in FAILED_CODES.items() if meaning.retryable}


class RequestLog:
    """Writes the line of one request, once, whoever comes first to say how it has ended.

    To be made in a task of its connection, which has the connection's number in its context.
    """

    def __init__(self, message: RequestMessage) -> None:
        self._is_written = False
        self._arrived_at = monotonic()
        self._takes_the_engine = isinstance(message, TAKES_THE_ENGINE)
        self._facts: dict[str, object] = {
            **structlog.contextvars.get_contextvars(),
            "request_id": message.request_id,
            "kind": message.__struct_config__.tag,
        }

    def finished(self, reason: str, **numbers: Number) -> None:
        """Log a request that has got what there was to get."""
        facts = self._take({"reason": reason, **numbers})
        if facts is None:
            return
        if self._takes_the_engine:
            log.info("request.finished", **facts)
        else:
            log.debug("request.finished", **facts)

    def failed(self, err: RequestError, **numbers: Number) -> None:
        """Log a request that could not be served, with the numbers that its error has."""
        if isinstance(err, Cancelled):
            self.finished("cancelled", **numbers)
            return
        facts = self._take({"code": err.code, **numbers, **numbers_in(err.details)})
        if facts is None:
            return
        if "field" in err.details:  # a path in the request, and not what stands there
            facts["field"] = err.details["field"]
        log_failed(err.code, facts)

    def _take(self, facts: dict[str, Number | str]) -> dict[str, object] | None:
        """Return the facts; the second time nothing."""
        if self._is_written:
            return None
        self._is_written = True
        rounded = {
            name: round(each, 1) if isinstance(each, float) else each
            for name, each in facts.items()
        }
        total_ms = round((monotonic() - self._arrived_at) * 1e3, 1)
        return {**self._facts, **rounded, "total_ms": total_ms}


def numbers_in(details: Details) -> dict[str, Number]:
    """Return those details of an error that are numbers: its texts may quote the client."""
    return {name: each for name, each in details.items() if isinstance(each, Number)}


def log_failed(code: str, facts: dict[str, object]) -> None:
    """Log the end of a request by an error of this code."""
    if code in GRAVE:
        log.error("request.failed", **facts)
    elif code in FULL:
        log.warning("request.failed", **facts)
    else:
        log.info("request.failed", **facts)
