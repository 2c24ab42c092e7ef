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
from typing import Self, Unpack

from anyio.from_thread import start_blocking_portal

from runnerd.blocking_gate import Gate
from runnerd.blocking_streams import BlockingStatusStream, BlockingStream
from runnerd.chat import Message
from runnerd.client import Client, connect
from runnerd.client_options import ChatOptions, GenerateOptions, take_callback, without_template
from runnerd.prompt_parts import PromptPart
from runnerd.results import Completion
from runnerd.streams import ClientError
from runnerd.vectors import Vector
from runnerd_protocol.messages import KVType, Memory, Model, Pooling, Prompt, Status


class BlockingClient:
    """A connection to the daemon that listens at a path, for the time of a `with` block.

    Its methods are those of `Client`, and raise the same; `on_progress` is called in the thread
    that reads the stream. Entering raises what `connect` does. Outside of the block, or when
    another thread leaves it, calls raise `ClientError`.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._stack = ExitStack()
        self._entered: tuple[Gate, Client] | None = None

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise ClientError("the client's block is entered already")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            gate = Gate(portal)
            stack.callback(gate.wait_until_empty)
            connection = portal.wrap_async_context_manager(connect(self._path))
            client = stack.enter_context(connection)
            stack.callback(gate.close)
            self._entered = gate, client
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._entered = None
        self._stack.close()

    def _inside(self) -> tuple[Gate, Client]:
        entered = self._entered
        if entered is None:
            raise ClientError("a client is for the time of its `with` block")
        return entered

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        parts: Sequence[PromptPart] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> BlockingStream:
        """Start a generation, as `Client.generate` does."""
        on_progress = take_callback(options)
        gate, client = self._inside()
        block = client.generate(prompt, parts=parts, **options)
        return BlockingStream(gate, block, on_progress)

    def complete(
        self,
        prompt: Prompt | None = None,
        *,
        parts: Sequence[PromptPart] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Generate, and return the whole text; with `n`, all of the texts in `choices`."""
        with self.generate(prompt, parts=parts, **options) as stream:
            return stream.completion()

    def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> BlockingStream:
        """Start the generation of the assistant's next turn, as `Client.chat` does."""
        prompt = self.chat_prompt(
            messages, tools=options.get("tools"), variables=options.get("variables")
        )
        return self.generate(prompt, **without_template(options))

    def complete_chat(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> Completion:
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
        gate, client = self._inside()
        return gate.call(client.chat_prompt, messages, tools=tools, variables=variables)

    def embed(
        self,
        inputs: Sequence[Prompt],
        *,
        pooling: Pooling = "model",
        normalize: bool = True,
        truncate: bool = False,
    ) -> list[Vector]:
        """Return an embedding per input, in order."""
        gate, client = self._inside()
        return gate.call(
            client.embed, inputs, pooling=pooling, normalize=normalize, truncate=truncate
        )

    def tokenize(self, prompt: Prompt, *, add_bos: bool = True) -> list[int]:
        """Return a prompt's token ids."""
        gate, client = self._inside()
        return gate.call(client.tokenize, prompt, add_bos=add_bos)

    def detokenize(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        gate, client = self._inside()
        return gate.call(client.detokenize, tokens)

    def status(self) -> Status:
        """Return how the daemon is doing."""
        gate, client = self._inside()
        return gate.call(client.status)

    def model(self) -> Model:
        """Return what is loaded; waits for the load."""
        gate, client = self._inside()
        return gate.call(client.model)

    def plan(
        self,
        n_ctx: int | None = None,
        n_slots: int | None = None,
        kv_type: KVType | None = None,
        n_gpu_layers: int | None = None,
    ) -> Memory:
        """Return what of memory the model takes, or would take, as `Client.plan` does."""
        gate, client = self._inside()
        return gate.call(client.plan, n_ctx, n_slots, kv_type, n_gpu_layers)

    def subscribe(self, interval_s: float = 1.0) -> BlockingStatusStream:
        """Start a stream of statuses: one now, at each change, and at every interval."""
        gate, client = self._inside()
        return BlockingStatusStream(gate, client.subscribe(interval_s))
