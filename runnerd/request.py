"""One request in progress, and what it tells its client: exactly one last answer in the end."""

from collections.abc import Callable

import anyio

from runnerd.errors import Cancelled, RequestError
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
)


def nothing() -> None:
    """Release nothing: nobody counts it."""


class Request:
    """A request, and where its answers go. Its task runs under its scope.

    `release` is called, once or more, when it no longer needs what its message holds.
    """

    def __init__(self, message: RequestMessage, runner: Runner, outbox: Outbox) -> None:
        self.message = message
        self.release: Callable[[], None] = nothing
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
        self.outbox.put(failed(self.request_id, err))

    def answer_cancelled(self) -> None:
        """Say that it was cancelled, where that is an answer of its own."""
        if isinstance(self.message, wire.Embed):
            self.fail(Cancelled("the request was cancelled"))
        else:
            self.outbox.ring()  # no answer, but a writer that is to close waits for the end
