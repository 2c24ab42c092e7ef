"""One request in progress, and what it tells its client: exactly one last answer in the end."""

import anyio

from runnerd.errors import Cancelled, RequestError
from runnerd.intake import Share
from runnerd.outbox import Outbox
from runnerd.replies import failed
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

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

    @property
    def request_id(self) -> int:
        """The client's number for it."""
        return self.message.request_id

    def cancel(self) -> None:
        """End it, wherever it is."""
        self.scope.cancel()

    def pause(self, *, paused: bool) -> None:
        """Make no more answers while its client does not read; only a generation can wait."""

    def fail(self, err: RequestError) -> None:
        """Say why the request cannot be served."""
        self.runner.troubles.note(err)
        self.outbox.put(failed(self.request_id, err))

    def answer_cancelled(self) -> None:
        """Say that it was cancelled, where that is an answer of its own."""
        if isinstance(self.message, wire.Embed | wire.Plan):
            self.fail(Cancelled("the request was cancelled"))
        else:
            self.outbox.ring()  # no answer, but a writer that is to close waits for the end
