"""What comes back to a client: the messages of one request, in order, as they arrive.

What a mailbox holds is read before its loss is told. The end of a request stays in it: whoever
reads on meets the same end again.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from runnerd.bell import Bell
from runnerd.results import Completion, completion_of
from runnerd_protocol.messages import (
    Accepted,
    DaemonMessage,
    Delta,
    Failed,
    Finished,
    PromptProgress,
    Status,
)

T = TypeVar("T")
OnProgress = Callable[[PromptProgress], object]
"""Is called with each word on the prompt."""


class ClientError(Exception):
    """Base of what the client raises."""


class CannotConnect(ClientError):
    """No daemon listens there."""


class NotAllowed(CannotConnect):
    """The system does not let us connect there."""


class CannotSend(ClientError):
    """The request is too large, holds what cannot be encoded, or lacks an image that is wanted."""


class CannotRead(ClientError):
    """The file of an image cannot be read. Nothing was sent."""


class RequestFailed(ClientError):
    """The daemon could not serve the request; `failed` says why, in words and numbers."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.code}: {failed.message}")
        self.failed = failed


class ConnectionLost(ClientError):
    """The connection ended, and this request has no answer. What came is incomplete."""


class Mailbox:
    """What has come for one request, and the way to wait for more.

    With `only_newest`, a `Status` that nobody has read gives way to the next.
    """

    def __init__(self, *, only_newest: bool = False) -> None:
        self._only_newest = only_newest
        self._messages: deque[DaemonMessage] = deque()
        self._news = Bell()
        self._loss: tuple[type[ClientError], str, Exception | None] | None = None

    def put(self, message: DaemonMessage) -> None:
        """Add what has come."""
        if self._only_newest and isinstance(message, Status):
            self._messages.clear()
        self._messages.append(message)
        self._news.ring()

    def lose(
        self,
        loss: str,
        kind: type[ClientError] = ConnectionLost,
        cause: Exception | None = None,
    ) -> None:
        """Say that no more will come, and why; `kind` is what to raise, from `cause`."""
        self._loss = kind, loss, cause
        self._news.ring()

    async def get(self) -> DaemonMessage:
        """Return the next message; `Finished` again and again.

        Raises:
            RequestFailed: the daemon said `Failed`.
            ConnectionLost, CannotSend: there is no more.
        """
        while not self._messages:
            if self._loss is not None:
                kind, why, cause = self._loss
                raise kind(why) from cause
            await self._news.wait()
        match self._messages[0]:
            case Failed() as failed:
                raise RequestFailed(failed)
            case Finished() as finished:
                return finished
            case _:
                return self._messages.popleft()


class _Stream(Generic[T]):
    """Messages of one request, until its last."""

    def __init__(self, request_id: int, mailbox: Mailbox) -> None:
        self.request_id = request_id
        self._mailbox = mailbox

    def __aiter__(self) -> Self:
        return self


class GenerationStream(_Stream[Delta]):
    """The deltas of one generation; `finished` is there when they have ended.

    `progress` is the newest word on the prompt, if it was asked for.
    """

    def __init__(
        self, request_id: int, mailbox: Mailbox, on_progress: OnProgress | None = None
    ) -> None:
        super().__init__(request_id, mailbox)
        self.accepted: Accepted | None = None
        self.progress: PromptProgress | None = None
        self.finished: Finished | None = None
        self._on_progress = on_progress

    async def __anext__(self) -> Delta:
        """Return the next piece of text; tells `on_progress` of what came before it.

        Raises:
            RequestFailed: the daemon could not complete the request.
            CannotSend: it wants an image that was given by its hash alone.
            ConnectionLost: the connection ended before the request did.
        """
        while (event := await self.event()) is not None:
            if isinstance(event, Delta):
                return event
            if self._on_progress is not None:
                self._on_progress(event)
        raise StopAsyncIteration

    async def event(self) -> Delta | PromptProgress | None:
        """Return the next piece of text or word on the prompt, None at the end.

        Raises what reading the deltas does, and does not call `on_progress`.
        """
        while self.finished is None:
            match await self._mailbox.get():
                case Delta() as delta:
                    return delta
                case PromptProgress() as progress:
                    self.progress = progress
                    return progress
                case Accepted() as accepted:
                    self.accepted = accepted
                case Finished() as finished:
                    self.finished = finished
        return None

    async def completion(self) -> Completion:
        """Wait for the end; return all that has not been read yet."""
        deltas = [delta async for delta in self]
        assert self.finished is not None
        return completion_of(deltas, self.finished)


class StatusStream(_Stream[Status]):
    """Statuses of a subscription. It ends after the one that is marked `last`."""

    _has_ended = False

    async def __anext__(self) -> Status:
        """Return the next status.

        Raises:
            RequestFailed: the daemon refused the subscription.
            ConnectionLost: the connection ended before the subscription did.
        """
        if self._has_ended:
            raise StopAsyncIteration
        message = await self._mailbox.get()
        assert isinstance(message, Status)
        self._has_ended = message.last
        return message
