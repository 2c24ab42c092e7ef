"""A client for code without an event loop: the same calls, blocking.

    with BlockingClient(path) as client, client.generate("Once", max_tokens=20) as stream:
        for delta in stream:
            print(delta.text, end="")
    print(stream.finished.reason)

An event loop in a thread does the work. Streams may be read in several threads at once.
"""

from contextlib import AbstractContextManager, ExitStack
from os import PathLike
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from runnerd.client import Client, Completion, GenerationStream, connect
from runnerd_protocol.messages import Delta, Finished, Model, Prompt, Status


class BlockingStream:
    """The deltas of one generation; `finished` is there when they have ended.

    Leaving its block early, or `close`, cancels the request.
    """

    def __init__(
        self,
        portal: BlockingPortal,
        opening: AbstractContextManager[GenerationStream],
        open_streams: set["BlockingStream"],
    ) -> None:
        self._portal = portal
        self._stack = ExitStack()
        self._stream = self._stack.enter_context(opening)
        open_streams.add(self)
        self._stack.callback(open_streams.discard, self)

    @property
    def finished(self) -> Finished | None:
        """How it went, once it has ended."""
        return self._stream.finished

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        """Return the next piece of text; raises what the async client does."""
        delta = self._portal.call(self._next)
        if delta is None:
            raise StopIteration
        return delta

    async def _next(self) -> Delta | None:
        return await anext(self._stream, None)

    def completion(self) -> Completion:
        """Wait for the end; return all text that has not been read yet."""
        return self._portal.call(self._stream.completion)

    def close(self) -> None:
        """Cancel the request if it has not ended. May be called again."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


class BlockingClient:
    """A connection to the daemon that listens at a path, for the time of a `with` block.

    Raises what `connect` does.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._stack = ExitStack()
        self._streams: set[BlockingStream] = set()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal: BlockingPortal = stack.enter_context(start_blocking_portal())
            connection = self._portal.wrap_async_context_manager(connect(self._path))
            self._client: Client = stack.enter_context(connection)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for stream in tuple(self._streams):  # an open one would keep the event loop from ending
            stream.close()
        self._stack.close()

    def generate(self, prompt: Prompt, **options: object) -> BlockingStream:
        """Start a generation. Options are the fields of the wire's `Generate`."""
        opening = self._portal.wrap_async_context_manager(self._client.generate(prompt, **options))
        return BlockingStream(self._portal, opening, self._streams)

    def complete(self, prompt: Prompt, **options: object) -> Completion:
        """Generate, and return the whole text."""
        with self.generate(prompt, **options) as stream:
            return stream.completion()

    def tokenize(self, prompt: Prompt, *, add_bos: bool = True) -> list[int]:
        """Return a prompt's token ids."""

        async def tokenize() -> list[int]:
            return await self._client.tokenize(prompt, add_bos=add_bos)

        return self._portal.call(tokenize)

    def detokenize(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        return self._portal.call(self._client.detokenize, tokens)

    def status(self) -> Status:
        """Return how the daemon is doing."""
        return self._portal.call(self._client.status)

    def model(self) -> Model:
        """Return what is loaded; waits for the load."""
        return self._portal.call(self._client.model)
