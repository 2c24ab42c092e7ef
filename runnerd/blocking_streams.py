"""The streams of the blocking client: iterators, each with a block of its own."""

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar

from runnerd.blocking_gate import Gate
from runnerd.results import Completion, completion_of
from runnerd.streams import GenerationStream, OnProgress, StatusStream
from runnerd_protocol.messages import Accepted, Delta, Finished, PromptProgress, Status

S = TypeVar("S", GenerationStream, StatusStream)


class _BlockingStream(Generic[S]):
    """A stream of the async client. Leaving its block early, or `close`, cancels the request."""

    def __init__(self, gate: Gate, block: AbstractAsyncContextManager[S]) -> None:
        self._gate = gate
        self._stream: S
        self._stream, self._stack = gate.open(block)

    def close(self) -> None:
        """Cancel the request if it has not ended. May be called again."""
        self._gate.leave(self._stack)

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


class BlockingStream(_BlockingStream[GenerationStream]):
    """The deltas of one generation; `finished` is there when they have ended."""

    def __init__(
        self,
        gate: Gate,
        block: AbstractAsyncContextManager[GenerationStream],
        on_progress: OnProgress | None = None,
    ) -> None:
        super().__init__(gate, block)
        self._on_progress = on_progress

    @property
    def accepted(self) -> Accepted | None:
        """What the daemon said when it took the request, once it has."""
        return self._stream.accepted

    @property
    def progress(self) -> PromptProgress | None:
        """The newest word on the prompt, if it was asked for."""
        return self._stream.progress

    @property
    def finished(self) -> Finished | None:
        """How it went, once it has ended."""
        return self._stream.finished

    def __next__(self) -> Delta:
        """Return the next piece of text; raises what the async client does."""
        while (event := self._gate.call(self._stream.event)) is not None:
            if isinstance(event, Delta):
                return event
            if self._on_progress is not None:
                self._on_progress(event)
        raise StopIteration

    def completion(self) -> Completion:
        """Wait for the end; return all that has not been read yet."""
        deltas = list(self)
        assert self.finished is not None
        return completion_of(deltas, self.finished)


class BlockingStatusStream(_BlockingStream[StatusStream]):
    """Statuses of a subscription. It ends after the one that is marked `last`."""

    def __next__(self) -> Status:
        """Return the next status; raises what the async client does."""
        status = self._gate.call(self._next)
        if status is None:
            raise StopIteration
        return status

    async def _next(self) -> Status | None:
        return await anext(self._stream, None)
