"""One request in progress, and what it tells its client: exactly one last answer in the end."""

import anyio
import structlog

from runnerd.errors import Cancelled, Internal, RequestError
from runnerd.intake import Share
from runnerd.outbox import Outbox
from runnerd.replies import failed
from runnerd.request_log import Number, RequestLog, RequestMessage
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

log = structlog.get_logger()


class Request:
    """A request, and where its answers go. Its task runs under its scope.

    `share` is what its message counts for, to be given back once that is not needed any more.
    """

    def __init__(
        self, message: RequestMessage, runner: Runner, outbox: Outbox, share: Share
    ) -> None:
        self.message = message
        self.share = share
        self.runner = runner
        self.outbox = outbox
        self.scope = anyio.CancelScope()
        self._failed_by: RequestError | None = None  # where that is why it was cancelled
        self.log = RequestLog(message)

    @property
    def request_id(self) -> int:
        """The client's number for it."""
        return self.message.request_id

    @property
    def is_submitted(self) -> bool:
        """Whether its last answer comes out of the decode loop, and not of its task."""
        return False

    @property
    def numbers(self) -> dict[str, Number]:
        """How much it asks for, and how much it has got: for its line in the log."""
        return {}

    def cancel(self, err: RequestError | None = None) -> None:
        """End it, wherever it is; with an error, as failed by that."""
        self._failed_by = self._failed_by or err
        self.scope.cancel()

    def pause(self, *, paused: bool) -> None:
        """Make no more answers while its client does not read; only a generation can wait."""

    def fail(self, err: RequestError) -> None:
        """Say why the request cannot be served."""
        self.runner.troubles.note(err)
        self.outbox.put(failed(self.request_id, err))
        self.log.failed(err, **self.numbers)

    def crash(self, err: Exception) -> None:
        """Fail by an error that is none of the client's, and costs no other request anything."""
        log_crash(self.request_id, err)
        self.fail(Internal())

    def answer_cancelled(self) -> None:
        """Say that it was cancelled, where that is an answer of its own, or by what it failed."""
        if self._failed_by is not None:
            self.fail(self._failed_by)
        elif isinstance(self.message, wire.Embed | wire.Plan):
            self.fail(Cancelled("the request was cancelled"))
        else:
            self.outbox.ring()  # no answer, but a writer that is to close waits for the end


def log_crash(request_id: int, err: Exception) -> None:
    """Log a bug of ours, or a want of memory, that has met a request."""
    log.error("request.crashed", request_id=request_id, exc_info=err)
