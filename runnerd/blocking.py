"""A client for code without an event loop: the same calls, blocking.

    with BlockingClient(path) as client, client.generate("Once", max_tokens=20) as stream:
        for delta in stream:
            print(delta.text, end="")
    print(stream.finished.reason)

An event loop in a thread does the work. Streams may be read in several threads at once.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from runnerd.blocking_streams import BlockingStatusStream, BlockingStream
from runnerd.chat import ChatOptions, Message
from runnerd.client import Client, connect
from runnerd.results import Completion
from runnerd.streams import take_callback
from runnerd.vectors import Vector
from runnerd_protocol.messages import Model, Pooling, Prompt, Status


class BlockingClient:
    """A connection to the daemon that listens at a path, for the time of a `with` block.

    Its methods are those of `Client`, and raise the same; `on_progress` is called in the thread
    that reads the stream. Entering raises what `connect` does.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._stack = ExitStack()
        self._closers: set[ExitStack] = set()

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
        for closer in tuple(self._closers):  # an open stream would keep the loop from ending
            closer.close()
        self._stack.close()

    def generate(self, prompt: Prompt, **options: object) -> BlockingStream:
        """Start a generation, as `Client.generate` does."""
        on_progress = take_callback(options)
        opened = self._portal.wrap_async_context_manager(self._client.generate(prompt, **options))
        return BlockingStream(self._portal, opened, self._closers, on_progress)

    def complete(self, prompt: Prompt, **options: object) -> Completion:
        """Generate, and return the whole text; with `n`, all of the texts in `choices`."""
        with self.generate(prompt, **options) as stream:
            return stream.completion()

    def chat(self, messages: Sequence[Message], **options: object) -> BlockingStream:
        """Start the generation of the assistant's next turn, as `Client.chat` does."""
        told = ChatOptions.taken_from(options)
        prompt = self.chat_prompt(messages, tools=told.tools, variables=told.variables)
        return self.generate(prompt, **options)

    def complete_chat(self, messages: Sequence[Message], **options: object) -> Completion:
        """Generate the assistant's next turn, and return the whole of it."""
        with self.chat(messages, **options) as stream:
            return stream.completion()

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> Prompt:
        """Return messages as a prompt, by the template of the model that is loaded."""

        async def render() -> Prompt:
            return await self._client.chat_prompt(messages, tools=tools, variables=variables)

        return self._portal.call(render)

    def embed(
        self,
        inputs: Sequence[Prompt],
        *,
        pooling: Pooling = "model",
        normalize: bool = True,
        truncate: bool = False,
    ) -> list[Vector]:
        """Return an embedding per input, in order."""

        async def embed() -> list[Vector]:
            return await self._client.embed(
                inputs, pooling=pooling, normalize=normalize, truncate=truncate
            )

        return self._portal.call(embed)

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

    def subscribe(self, interval_s: float = 1.0) -> BlockingStatusStream:
        """Start a stream of statuses: one now, at each change, and at every interval."""
        opened = self._portal.wrap_async_context_manager(self._client.subscribe(interval_s))
        return BlockingStatusStream(self._portal, opened, self._closers)
