"""A client's connection: numbers requests, and hands each what the daemon says to it.

Whoever waits is told when the connection is lost, and of the first cause.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import UNIXSocketStream

from runnerd.socket_io import raw_socket, receive
from runnerd.streams import CannotSend, ConnectionLost, Mailbox
from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.errors import IncompleteStream, LocalProtocolError, RemoteProtocolError
from runnerd_protocol.messages import (
    Cancel,
    ClientMessage,
    DaemonMessage,
    Detokenize,
    Embed,
    Failed,
    Generate,
    GetModel,
    GetStatus,
    ProtocolError,
    Subscribe,
    Tokenize,
    Welcome,
)

READ_BYTES = 2**16
CANCEL_S = 1.0  # for a cancel to be written when a block is left
SEND_S = 30.0  # without the daemon taking anything of a message; it reads at all times

Request = Generate | Embed | Tokenize | Detokenize | GetStatus | GetModel | Subscribe


class Link:
    """One connected socket. `run` reads it, and has to run while requests are open."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self.welcome: Welcome | None = None
        self._stream = stream
        self._socket = raw_socket(stream)
        self._connection = ClientConnection()
        self._mailboxes: dict[int, Mailbox] = {}
        self._next_id = 0
        self._sending = anyio.Lock()
        self._welcomed = anyio.Event()
        self._lost = anyio.Event()
        self._loss: str | None = None

    def new_id(self) -> int:
        """Return a number that no request has had."""
        self._next_id += 1
        return self._next_id

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Mailbox]:
        """Send a request; when the block is left before its end, cancel it."""
        mailbox = self._mailboxes[request.request_id] = Mailbox(
            only_newest=isinstance(request, Subscribe)
        )
        try:
            await self._send(request)
            yield mailbox
        finally:
            del self._mailboxes[request.request_id]
            mailbox.lose("the request's block was left")
            if self._connection.is_active(request.request_id):
                with anyio.move_on_after(CANCEL_S, shield=True), suppress(ConnectionLost):
                    await self._send(Cancel(request.request_id))

    async def _send(self, message: ClientMessage) -> None:
        async with self._sending:
            if self._loss is not None:
                raise ConnectionLost(self._loss)
            try:
                frame = self._connection.send(message)
            except LocalProtocolError as err:
                raise CannotSend(str(err)) from err
            await self._write(frame)
            if self._loss is not None:
                raise ConnectionLost(self._loss)

    async def _write(self, frame: bytes) -> None:
        left = memoryview(frame)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await self._until_writable(is_amid_frame=len(left) < len(frame))
            except OSError:
                await self._lost.wait()  # the receiver reads on, and will know why
            if self._loss is not None:
                return

    async def _until_writable(self, *, is_amid_frame: bool) -> None:
        try:
            with anyio.move_on_after(SEND_S) as scope:
                await anyio.wait_writable(self._socket)
        except anyio.get_cancelled_exc_class():
            if is_amid_frame:  # half of one would make nonsense of every later one
                self._lose("a request was given up amid its frame")
            raise
        if scope.cancelled_caught:
            self._lose(f"the daemon has not read for {SEND_S} s")

    async def greet(self) -> None:
        """Say hello, and wait for the welcome.

        Raises:
            ConnectionLost: the daemon refused the connection; the message says why.
        """
        with suppress(anyio.BrokenResourceError):  # the receiver will know why
            await self._stream.send(self._connection.hello("runnerd.client"))
        await self._welcomed.wait()
        if self.welcome is None:
            raise ConnectionLost(self._loss)

    async def run(self) -> None:
        """Hand out what the daemon says, until it says no more."""
        try:
            while data := await receive(self._socket, READ_BYTES):
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
            with suppress(OSError):  # it may be closed
                self._socket.shutdown(socket.SHUT_RDWR)  # also wakes who waits to write
