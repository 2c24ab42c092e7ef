"""A client: many requests over one connection, each with a stream of its own.

    async with connect(path) as client, client.generate("Once", max_tokens=20) as stream:
        async for delta in stream:
            print(delta.text, end="")
    print(stream.finished.reason)

Leaving a stream's block early cancels its request. A stream that ends without `Finished`
raises: `RequestFailed` if the daemon said why, otherwise `ConnectionLost`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from os import PathLike
from typing import TypeVar

import anyio
from anyio.abc import UNIXSocketStream

from runnerd.socket_io import raw_socket, receive
from runnerd.streams import (
    CannotSend,
    ClientError,
    Completion,
    ConnectionLost,
    GenerationStream,
    Mailbox,
    RequestFailed,
    StatusStream,
)
from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.errors import IncompleteStream, LocalProtocolError, RemoteProtocolError
from runnerd_protocol.messages import (
    Cancel,
    ClientMessage,
    DaemonMessage,
    Detokenize,
    Failed,
    Generate,
    GetModel,
    GetStatus,
    Model,
    Prompt,
    ProtocolError,
    Status,
    Subscribe,
    Text,
    Tokenize,
    Tokens,
    Welcome,
)

__all__ = [
    "CannotSend",
    "Client",
    "ClientError",
    "Completion",
    "ConnectionLost",
    "GenerationStream",
    "RequestFailed",
    "StatusStream",
    "attach",
    "connect",
]

READ_BYTES = 2**16
CANCEL_S = 1.0  # for a cancel to be written when a block is left
SEND_S = 30.0  # for the daemon to take a message; it reads at all times

T = TypeVar("T")
_Request = Generate | Tokenize | Detokenize | GetStatus | GetModel | Subscribe


class Client:
    """An open connection to a daemon. Made by `connect` and `attach`."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self.welcome: Welcome | None = None
        self._stream = stream
        self._connection = ClientConnection()
        self._mailboxes: dict[int, Mailbox] = {}
        self._next_id = 0
        self._sending = anyio.Lock()
        self._welcomed = anyio.Event()
        self._lost = anyio.Event()
        self._loss: str | None = None

    # --- requests --------------------------------------------------------------------------

    @asynccontextmanager
    async def generate(self, prompt: Prompt, **options: object) -> AsyncIterator[GenerationStream]:
        """Open a generation. Options are the fields of the wire's `Generate`."""
        request = Generate(self._new_id(), prompt, **options)  # type: ignore[arg-type]
        async with self._open(request) as mailbox:
            yield GenerationStream(request.request_id, mailbox)

    async def complete(self, prompt: Prompt, **options: object) -> Completion:
        """Generate, and return the whole text."""
        async with self.generate(prompt, **options) as stream:
            return await stream.completion()

    async def tokenize(self, prompt: Prompt, *, add_bos: bool = True) -> list[int]:
        """Return a prompt's token ids."""
        return (await self._ask(Tokenize(self._new_id(), prompt, add_bos), Tokens)).tokens

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        return (await self._ask(Detokenize(self._new_id(), tokens), Text)).text

    async def status(self) -> Status:
        """Return how the daemon is doing."""
        return await self._ask(GetStatus(self._new_id()), Status)

    async def model(self) -> Model:
        """Return what is loaded; waits for the load."""
        return await self._ask(GetModel(self._new_id()), Model)

    @asynccontextmanager
    async def subscribe(self, interval_s: float = 1.0) -> AsyncIterator[StatusStream]:
        """Open a stream of statuses: one now, at each change, and at every interval."""
        request = Subscribe(self._new_id(), interval_s)
        async with self._open(request) as mailbox:
            yield StatusStream(request.request_id, mailbox)

    async def _ask(self, request: _Request, kind: type[T]) -> T:
        async with self._open(request) as mailbox:
            answer = await mailbox.get()
        assert isinstance(answer, kind)
        return answer

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    @asynccontextmanager
    async def _open(self, request: _Request) -> AsyncIterator[Mailbox]:
        """Send a request; when the block is left before its end, cancel it."""
        mailbox = self._mailboxes[request.request_id] = Mailbox()
        try:
            await self._send(request)
            yield mailbox
        finally:
            del self._mailboxes[request.request_id]
            mailbox.lose("the request's block was left")
            if self._connection.is_active(request.request_id):
                with anyio.move_on_after(CANCEL_S, shield=True), suppress(ConnectionLost):
                    await self._send(Cancel(request.request_id))

    # --- the connection --------------------------------------------------------------------

    async def _send(self, message: ClientMessage) -> None:
        async with self._sending:
            if self._loss is not None:
                raise ConnectionLost(self._loss)
            try:
                frame = self._connection.send(message)
            except LocalProtocolError as err:
                raise CannotSend(str(err)) from err
            # Shielded: half a frame would make nonsense of every later one.
            with anyio.move_on_after(SEND_S, shield=True) as scope:
                try:
                    await self._stream.send(frame)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._lost.wait()  # the receiver reads on, and will know why
            if scope.cancelled_caught:
                self._lose(f"the daemon has not read for {SEND_S} s")
            if self._loss is not None:
                raise ConnectionLost(self._loss)

    async def _greet(self) -> None:
        with suppress(anyio.BrokenResourceError):  # the receiver will know why
            await self._stream.send(self._connection.hello("runnerd.client"))
        await self._welcomed.wait()
        if self.welcome is None:
            raise ConnectionLost(self._loss)

    async def _receive(self) -> None:
        """Hand out what the daemon says, until it says no more."""
        sock = raw_socket(self._stream)
        try:
            while data := await receive(sock, READ_BYTES):
                for message in self._connection.receive(data):
                    self._route(message)
            self._connection.receive_eof()
            self._lose("the daemon has closed the connection")
        except anyio.BrokenResourceError:
            self._lose("the daemon has closed the connection")
        except IncompleteStream as err:
            self._lose(str(err))
        except RemoteProtocolError as err:
            for message in err.messages:
                self._route(message)
            self._lose(f"the daemon broke the protocol: {err}")
        finally:
            self._lose("it was closed here")  # this was cancelled: nobody else will say so

    def _route(self, message: DaemonMessage) -> None:
        match message:
            case Welcome():
                self.welcome = message
                self._welcomed.set()
            case ProtocolError(fatal=True):
                self._lose(f"{message.code}: {message.message}")
            case ProtocolError(code, text, details={"request_id": int(request_id)} as details):
                self._deliver(request_id, Failed(request_id, code, text, details=details))
            case ProtocolError():
                pass  # no request of ours is meant
            case _:
                self._deliver(message.request_id, message)

    def _deliver(self, request_id: int, message: DaemonMessage) -> None:
        if request_id in self._mailboxes:
            self._mailboxes[request_id].put(message)

    def _lose(self, loss: str) -> None:
        """Fail whoever still waits; the first cause is the one that counts."""
        if self._loss is None:
            self._loss = loss
            for mailbox in self._mailboxes.values():
                mailbox.lose(loss)
            self._lost.set()
            self._welcomed.set()


@asynccontextmanager
async def attach(stream: UNIXSocketStream) -> AsyncIterator[Client]:
    """Speak to a daemon over a connected socket; closes it at the end."""
    client = Client(stream)
    try:
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(client._receive)  # noqa: SLF001  # its own other half
            await client._greet()  # noqa: SLF001
            yield client
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The receiver raises nothing, so this is the caller's own exception, wrapped.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


@asynccontextmanager
async def connect(path: str | PathLike[str]) -> AsyncIterator[Client]:
    """Connect to the daemon that listens at `path`.

    Raises:
        OSError: nobody listens there.
        ConnectionLost: the daemon refused the connection; the message says why.
    """
    async with attach(await anyio.connect_unix(path)) as client:
        yield client
