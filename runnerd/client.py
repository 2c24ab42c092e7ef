"""A client: many requests over one connection, each with a stream of its own.

    async with connect(path) as client, client.generate("Once", max_tokens=20) as stream:
        async for delta in stream:
            print(delta.text, end="")
    print(stream.finished.reason)

An image is a part of a prompt, at any place: `parts=["What is this? ", Path("cat.png")]`.
Leaving a stream's block early cancels its request. A stream that ends without `Finished`
raises: `RequestFailed` if the daemon said why, otherwise `ConnectionLost`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from os import PathLike, fspath
from typing import TypeVar, Unpack

from anyio import to_thread
from anyio.abc import UNIXSocketStream

from runnerd.chat import ChatError, ChatMessage, Message, chat_prompt
from runnerd.client_options import (
    ChatOptions,
    GenerateOptions,
    request_of,
    take_callback,
    without_template,
)
from runnerd.link import Link, Request, WhyLost
from runnerd.prompt_parts import PromptPart, prompt_of
from runnerd.results import Completion, CompletionChoice
from runnerd.socket_io import connect_to
from runnerd.streams import (
    CannotConnect,
    CannotRead,
    CannotSend,
    ClientError,
    ConnectionLost,
    GenerationStream,
    NotAllowed,
    RequestFailed,
    StatusStream,
)
from runnerd.vectors import Vector, all_vectors
from runnerd_protocol.messages import (
    Detokenize,
    Embed,
    GetModel,
    GetStatus,
    KVType,
    Memory,
    MemoryReport,
    Model,
    Plan,
    Pooling,
    Prompt,
    Status,
    Subscribe,
    Text,
    Tokenize,
    Tokens,
    Welcome,
)

__all__ = [
    "CannotConnect",
    "CannotRead",
    "CannotSend",
    "ChatError",
    "ChatMessage",
    "ChatOptions",
    "Client",
    "ClientError",
    "Completion",
    "CompletionChoice",
    "ConnectionLost",
    "GenerateOptions",
    "GenerationStream",
    "NotAllowed",
    "PromptPart",
    "RequestFailed",
    "StatusStream",
    "attach",
    "connect",
]

T = TypeVar("T")


class Client:
    """An open connection to a daemon. Made by `connect` and `attach`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._model: Model | None = None

    @property
    def welcome(self) -> Welcome | None:
        """What the daemon said when the connection was made."""
        return self._link.welcome

    # --- text ------------------------------------------------------------------------------

    @asynccontextmanager
    async def generate(
        self,
        prompt: Prompt | None = None,
        *,
        parts: Sequence[PromptPart] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncIterator[GenerationStream]:
        """Open a generation, of a prompt or of parts: texts, images' bytes or paths, wire parts.

        A str is always text: use Path for a file.

        Options are the fields of the wire's `Generate`, and `on_progress`. A `json_schema` may be
        a dict, and `adapters` one of names and scales. `on_progress` is called with each
        `PromptProgress` (place in the queue, how much of the prompt is done) while the stream is
        read. An image that this connection has sent before is not sent again.

        Raises:
            CannotRead, CannotSend: an image's file cannot be read, or is too large.
        """
        on_progress = take_callback(options)
        asked = await prompt_of(prompt, parts, self._link.max_file_bytes)
        request = request_of(self._link.new_id(), asked, options)
        async with self._link.open(request) as mailbox:
            yield GenerationStream(request.request_id, mailbox, on_progress)

    async def complete(
        self,
        prompt: Prompt | None = None,
        *,
        parts: Sequence[PromptPart] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Generate, and return the whole text; with `n`, all of the texts in `choices`."""
        async with self.generate(prompt, parts=parts, **options) as stream:
            return await stream.completion()

    @asynccontextmanager
    async def chat(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> AsyncIterator[GenerationStream]:
        """Open the generation of the assistant's next turn.

        Options are those of `generate`, and `tools` and `variables` as in `chat_prompt`.

        Raises:
            ChatError: the model's template cannot render the messages.
        """
        prompt = await self.chat_prompt(
            messages, tools=options.get("tools"), variables=options.get("variables")
        )
        async with self.generate(prompt, **without_template(options)) as stream:
            yield stream

    async def complete_chat(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> Completion:
        """Generate the assistant's next turn, and return the whole of it, as `chat` would."""
        async with self.chat(messages, **options) as stream:
            return await stream.completion()

    async def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> Prompt:
        """Return messages as a prompt, by the template of the model that is loaded.

        What is in the messages can never act as a special token. `tools`, and `variables` that the
        template knows (`enable_thinking`), are the application's own and reach it as they are.
        A content may be a list of texts and images. All is read and rendered in a thread; who is
        cancelled leaves that to itself.

        Raises:
            ChatError: the template cannot render them, or jinja2 is not installed.
            CannotRead, CannotSend: an image's file cannot be read, or is too large.
        """
        if self._model is None:
            self._model = await self.model()
        render = partial(
            chat_prompt,
            self._model,
            messages,
            tools=tools,
            variables=variables,
            max_image_bytes=self._link.max_file_bytes,
        )
        return [*await to_thread.run_sync(render, abandon_on_cancel=True)]

    # --- everything else -------------------------------------------------------------------

    async def embed(
        self,
        inputs: Sequence[Prompt],
        *,
        pooling: Pooling = "model",
        normalize: bool = True,
        truncate: bool = False,
    ) -> list[Vector]:
        """Return an embedding per input, in order: `array("f")`, which numpy takes as a buffer."""
        if isinstance(inputs, str):
            raise TypeError("embed takes a list of inputs: a text of its own goes into one")
        if not inputs:
            return []
        request = Embed(self._link.new_id(), list(inputs), pooling, normalize, truncate)
        async with self._link.open(request) as mailbox:
            return await all_vectors(mailbox)

    async def tokenize(self, prompt: Prompt, *, add_bos: bool = True) -> list[int]:
        """Return a prompt's token ids."""
        return (await self._ask(Tokenize(self._link.new_id(), prompt, add_bos), Tokens)).tokens

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        return (await self._ask(Detokenize(self._link.new_id(), tokens), Text)).text

    async def status(self) -> Status:
        """Return how the daemon is doing."""
        return await self._ask(GetStatus(self._link.new_id()), Status)

    async def model(self) -> Model:
        """Return what is loaded; waits for the load."""
        return await self._ask(GetModel(self._link.new_id()), Model)

    async def plan(
        self,
        n_ctx: int | None = None,
        n_slots: int | None = None,
        kv_type: KVType | None = None,
        n_gpu_layers: int | None = None,
    ) -> Memory:
        """Return what of memory the model takes as it is loaded, or would take with other sizes.

        What is left out is as the daemon is configured. Nothing is loaded for it, nor unloaded.

        Raises:
            RequestFailed: it cannot be planned; the code says why.
        """
        asked = Plan(self._link.new_id(), n_ctx, n_slots, kv_type, n_gpu_layers)
        return (await self._ask(asked, MemoryReport)).memory

    @asynccontextmanager
    async def subscribe(self, interval_s: float = 1.0) -> AsyncIterator[StatusStream]:
        """Open a stream of statuses: one now, at each change, and at every interval."""
        request = Subscribe(self._link.new_id(), interval_s)
        async with self._link.open(request) as mailbox:
            yield StatusStream(request.request_id, mailbox)

    async def _ask(self, request: Request, kind: type[T]) -> T:
        async with self._link.open(request) as mailbox:
            answer = await mailbox.get()
        assert isinstance(answer, kind)
        return answer


@asynccontextmanager
async def attach(
    stream: UNIXSocketStream, why_lost: WhyLost | None = None
) -> AsyncIterator[Client]:
    """Speak to a daemon over a connected socket; closes it at the end.

    `ConnectionLost` is raised from what `why_lost` has found out when the daemon was gone.
    """
    async with Link(stream, why_lost).opened() as link:
        yield Client(link)


@asynccontextmanager
async def connect(path: str | PathLike[str]) -> AsyncIterator[Client]:
    """Connect to the daemon that listens at `path`.

    Raises:
        CannotConnect: nobody listens there; says what to do.
        NotAllowed: the mode of the socket's file, or of a directory, keeps us out.
        ConnectionLost: the daemon refused the connection; the message says why.
    """
    try:
        stream = await connect_to(path)
    except PermissionError as err:
        raise NotAllowed(
            f"may not connect to {fspath(path)} ({err.strerror}): its owner and group, and those"
            " of the directories above, say who may"
        ) from err
    except OSError as err:
        raise CannotConnect(
            f"nobody listens at {fspath(path)} ({err.strerror or err}):"
            f" start a daemon with `runnerd serve MODEL --socket {fspath(path)}`"
        ) from err
    async with attach(stream) as client:
        yield client
