"""A client's connection: numbers requests, and hands each what the daemon says to it.

Whoever waits is told when the connection is lost, and of the first cause. Files that the daemon
wants are sent from here, whether or not anybody reads what it says.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

import anyio
from anyio.abc import UNIXSocketStream

from runnerd.link_files import MEDIA_FRAME_BYTES, LinkFiles, Outgoing, outgoing_of
from runnerd.socket_io import raw_socket, receive
from runnerd.streams import CannotSend, ConnectionLost, Mailbox
from runnerd.unwrapping import unwrapped
from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.errors import (
    IncompleteStream,
    LocalProtocolError,
    MessageTooLarge,
    RemoteProtocolError,
)
from runnerd_protocol.framing import DEFAULT_MAX_FRAME_BYTES
from runnerd_protocol.messages import (
    Cancel,
    ClientMessage,
    DaemonMessage,
    Delta,
    Detokenize,
    Embed,
    Failed,
    Generate,
    GetModel,
    GetStatus,
    Media,
    MediaWanted,
    Plan,
    ProtocolError,
    Subscribe,
    Tokenize,
    Welcome,
)

READ_BYTES = 2**16
CANCEL_S = 1.0  # for a cancel to be written when a block is left
# Of files that go along with a request. Larger ones are left to be asked for: who gives a request
# up amid its frame loses the connection, and those are sent from a task that nobody gives up.
INLINE_BYTES = 2**14
SEND_S = 30.0  # without the daemon taking anything of a message; it reads at all times

Request = Generate | Embed | Tokenize | Detokenize | GetStatus | GetModel | Subscribe | Plan
WhyLost = Callable[[], Awaitable[Exception | None]]
"""Finds out why the other end of a connection is gone, where somebody can know."""


class Link:
    """One connected socket; requests are for the block of `opened`.

    Whoever waits is told of a loss when `why_lost` has said why: it must not take long.
    """

    def __init__(self, stream: UNIXSocketStream, why_lost: WhyLost | None = None) -> None:
        self.welcome: Welcome | None = None
        self._stream = stream
        self._socket = raw_socket(stream)
        self._connection = ClientConnection()
        self._mailboxes: dict[int, Mailbox] = {}
        self._files = LinkFiles()
        self._next_id = 0
        self._sending = anyio.Lock()
        self._welcomed = anyio.Event()
        self._lost = anyio.Event()
        self._loss: str | None = None
        self._why_lost = why_lost
        self._cause: Exception | None = None

    @property
    def max_file_bytes(self) -> int:
        """The largest image file that can be sent."""
        largest = DEFAULT_MAX_FRAME_BYTES if self.welcome is None else self.welcome.max_frame_bytes
        return largest - MEDIA_FRAME_BYTES

    def new_id(self) -> int:
        """Return a number that no request has had."""
        self._next_id += 1
        return self._next_id

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        """Read the socket and say hello for the time of a block; close it at the end.

        Raises:
            ConnectionLost: the daemon refused the connection; the message says why.
        """
        with unwrapped():  # reading raises nothing, so what comes is the caller's own
            async with self._stream, anyio.create_task_group() as tasks:
                tasks.start_soon(self._run)
                await self._greet()
                yield self
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Mailbox]:
        """Send a request; when the block is left before its end, cancel it."""
        outgoing = None
        if isinstance(request, Generate):
            outgoing = await outgoing_of(request, self.max_file_bytes)
        mailbox = self._mailboxes[request.request_id] = Mailbox(
            only_newest=isinstance(request, Subscribe)
        )
        try:
            if outgoing is not None:
                self._files.keep(outgoing)
            await self._send(request if outgoing is None else outgoing)
            yield mailbox
        finally:
            del self._mailboxes[request.request_id]
            self._files.drop(request.request_id)
            mailbox.lose("the request's block was left")
            if self._connection.is_active(request.request_id):
                with anyio.move_on_after(CANCEL_S, shield=True), suppress(ConnectionLost):
                    await self._send(Cancel(request.request_id))

    async def _send(self, message: ClientMessage | Outgoing) -> None:
        async with self._sending:
            if self._loss is not None:
                raise ConnectionLost(self._loss) from self._cause
            try:
                frame = self._frame_of(message)
            except LocalProtocolError as err:
                raise CannotSend(str(err)) from err
            await self._write(frame)
            if self._loss is not None:
                raise ConnectionLost(self._loss) from self._cause
            if isinstance(message, Outgoing):
                self._files.note_sent(message)

    def _frame_of(self, message: ClientMessage | Outgoing) -> bytes:
        if isinstance(message, Media) and message.request_id not in self._mailboxes:
            return b""  # its block was left while it waited for its turn
        if not isinstance(message, Outgoing):
            return self._connection.send(message)
        sent = self._files.sent
        if message.n_bytes_without(sent) <= INLINE_BYTES:
            with suppress(MessageTooLarge):
                return self._connection.send(message.by_hash(sent))
        return self._connection.send(message.by_hash())  # the daemon asks for what it lacks

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

    async def _greet(self) -> None:
        with suppress(anyio.BrokenResourceError):  # the receiver will know why
            await self._stream.send(self._connection.hello("runnerd.client"))
        await self._welcomed.wait()
        if self.welcome is None:
            raise ConnectionLost(self._loss) from self._cause

    async def _run(self) -> None:
        """Hand out what the daemon says, until it says no more, and send what it wants."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_files)
            await self._receive()
            tasks.cancel_scope.cancel()

    async def _send_files(self) -> None:
        with suppress(ConnectionLost):
            while True:
                await self._send(await self._files.next_due())

    async def _receive(self) -> None:
        try:
            loss = await self._read()
            if self._loss is None and self._why_lost is not None:
                self._cause = await self._why_lost()
            self._lose(loss)
        finally:
            self._lose("it was closed here")  # this was cancelled: nobody else will say so

    async def _read(self) -> str:
        """Hand out messages until there are no more; return why."""
        try:
            while data := await receive(self._socket, READ_BYTES):
                for message in self._connection.receive(data):
                    self._route(message)
            self._connection.receive_eof()
            return "the daemon has closed the connection"
        except anyio.BrokenResourceError:
            return "the daemon has closed the connection"
        except IncompleteStream as err:
            return str(err)
        except RemoteProtocolError as err:
            for message in err.messages:
                self._route(message)
            return f"the daemon broke the protocol: {err}"

    def _route(self, message: DaemonMessage) -> None:
        match message:
            case Delta():  # as almost every message is
                self._deliver(message.request_id, message)
            case Welcome():
                self.welcome = message
                self._welcomed.set()
            case ProtocolError(fatal=True):
                self._lose(f"{message.code}: {message.message}")
            case ProtocolError(code, text, details={"request_id": int(request_id)} as details):
                self._deliver(request_id, Failed(request_id, code, text, details=details))
            case ProtocolError():
                pass  # no request of ours is meant
            case MediaWanted(request_id, digests):
                self._want(request_id, digests)
            case _:
                self._deliver(message.request_id, message)

    def _want(self, request_id: int, digests: list[bytes]) -> None:
        if request_id in self._mailboxes:
            missing = self._files.want(request_id, digests)
            if missing is not None:
                self._mailboxes[request_id].lose(
                    f"the daemon wants an image of which nothing but its SHA-256 was given:"
                    f" {missing.hex()}",
                    CannotSend,
                )

    def _deliver(self, request_id: int, message: DaemonMessage) -> None:
        mailbox = self._mailboxes.get(request_id)
        if mailbox is not None:
            mailbox.put(message)

    def _lose(self, loss: str) -> None:
        """Fail whoever still waits; the first cause is the one that counts."""
        if self._loss is None:
            self._loss = loss
            for mailbox in self._mailboxes.values():
                mailbox.lose(loss, cause=self._cause)
            self._lost.set()
            self._welcomed.set()
            with suppress(OSError):  # it may be closed
                self._socket.shutdown(socket.SHUT_RDWR)  # also wakes who waits to write
