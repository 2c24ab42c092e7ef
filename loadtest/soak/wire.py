"""A connection of a soak: frame by frame, so that it can be left at any moment and in any way."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import UNIXSocketStream
from msgspec.structs import replace

from runnerd.link import Request
from runnerd.socket_io import connect_to, raw_socket, receive, send
from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.errors import RemoteProtocolError
from runnerd_protocol.messages import Cancel, DaemonMessage

READ_BYTES = 2**16
DROP_BYTES, DROP_S = 2048, 0.001  # of a slow reader
SEND_S = 60.0  # without the daemon taking anything


class Wire:
    """A connection that is spoken to frame by frame, and can be left as rudely as any."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._socket = raw_socket(stream)
        self._connection = ClientConnection()
        self._messages: list[DaemonMessage] = []
        self._n_asked = 0

    async def greet(self, *, is_half: bool = False) -> None:
        """Say hello, or half of it."""
        await self._send(self._connection.hello("soak"), is_half=is_half)

    async def ask(self, request: Request, *, is_half: bool = False) -> int:
        """Send a request, or half of one; return the id that it was given."""
        self._n_asked += 1
        frame = self._connection.send(replace(request, request_id=self._n_asked))
        await self._send(frame, is_half=is_half)
        return self._n_asked

    def say_no_more(self) -> None:
        """Close our direction of the connection: what was asked is still answered."""
        self._socket.shutdown(socket.SHUT_WR)

    async def cancel(self, request_id: int) -> None:
        """Cancel a request that has not ended."""
        if self._connection.is_active(request_id):
            await self._send(self._connection.send(Cancel(request_id)))

    async def next(self, *, is_slow: bool) -> DaemonMessage:
        """Return what the daemon says next.

        Raises:
            RemoteProtocolError: it says what it must not, or nothing more.
            anyio.BrokenResourceError: the connection was reset.
        """
        while not self._messages:
            if is_slow:
                await anyio.sleep(DROP_S)
            data = await receive(self._socket, DROP_BYTES if is_slow else READ_BYTES)
            if not data:
                self._connection.receive_eof()
                raise RemoteProtocolError("the daemon has hung up")
            self._messages += self._connection.receive(data)
        return self._messages.pop(0)

    async def until_unread(self) -> None:
        """Wait until something has come that nobody has read."""
        if not self._messages:
            await anyio.wait_readable(self._socket)

    def has_ended(self, request_id: int) -> bool:
        """Whether all that a request is owed has come, and was read."""
        return not self._messages and not self._connection.is_active(request_id)

    async def until_closed(self) -> None:
        """Read until the daemon closes the connection.

        Raises:
            RemoteProtocolError: it owes something.
        """
        while data := await receive(self._socket, READ_BYTES):
            self._messages += self._connection.receive(data)
        self._connection.receive_eof()

    async def _send(self, frame: bytes, *, is_half: bool = False) -> None:
        await send(self._socket, frame[: len(frame) // 2] if is_half else frame, SEND_S)


@asynccontextmanager
async def wire_to(path: Path) -> AsyncIterator[Wire]:
    """Connect to the daemon at a path; the connection is closed at the end of the block."""
    async with await connect_to(path) as stream:
        yield Wire(stream)
