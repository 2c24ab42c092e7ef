"""Reading and writing a socket by itself, below anyio's stream, which owns and closes it."""

import select
import socket
from os import PathLike, fspath

import anyio
from anyio.abc import SocketAttribute, UNIXSocketStream

BACKLOG_S = 0.02  # between two looks whether a backlog has room
TRICKLE = 4  # times the time-out: how long all of the data may take, were it byte by byte


def raw_socket(stream: UNIXSocketStream) -> socket.socket:
    """Return the stream's socket. Ask once: anyio takes a system call and 30 us to tell."""
    sock: socket.socket = stream.extra(SocketAttribute.raw_socket)
    return sock


async def connect_to(path: str | PathLike[str]) -> UNIXSocketStream:
    """Return a connection to whoever listens at a path; waits while its backlog is full.

    anyio's own `connect_unix` spins meanwhile on asyncio, and on trio returns a socket that is not
    connected.

    Raises:
        OSError: nobody listens there, or we may not connect.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(fspath(path))
            except BlockingIOError:
                await anyio.sleep(BACKLOG_S)  # the kernel wakes blocking callers only
            else:
                return await UNIXSocketStream.from_socket(sock)
    except BaseException:
        sock.close()
        raise


async def accept(sock: socket.socket) -> socket.socket:
    """Return the next connection of a listening socket.

    Raises:
        OSError: accept(2) said so; there may be no descriptor left for it.
    """
    while True:
        await anyio.wait_readable(sock)
        try:
            return sock.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            continue  # somebody else took it, or it has gone


async def receive(sock: socket.socket, n_bytes: int) -> bytes:
    """Return up to so many bytes as soon as there are some; none at the end of the stream.

    anyio's own `receive` is cancelled badly on asyncio when bytes arrive in the same turn of the
    loop: the loop logs an InvalidStateError. A peer that is cut off while it speaks, and a client
    that leaves while it is answered, do just that all the time.

    Raises:
        anyio.BrokenResourceError: the connection was reset.
    """
    while True:
        await anyio.wait_readable(sock)  # also where the others get their turn
        try:
            return sock.recv(n_bytes)
        except BlockingIOError:
            continue  # readable no more
        except OSError as err:
            raise anyio.BrokenResourceError from err


async def send(sock: socket.socket, data: bytes, timeout_s: float) -> None:
    """Send all of the data. What fits into the socket's buffer costs one system call.

    Raises:
        TimeoutError: the peer has taken nothing for so many seconds, or not all of it for
            `TRICKLE` times as many.
        anyio.BrokenResourceError: the connection is closed.
    """
    left = memoryview(data)
    deadline: float | None = None  # set when it has to wait: most of the time it need not
    while left:
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            now = anyio.current_time()
            if deadline is None:
                deadline = now + TRICKLE * timeout_s
            with anyio.fail_after(min(timeout_s, deadline - now)):
                await anyio.wait_writable(sock)
        except OSError as err:
            raise anyio.BrokenResourceError from err


async def until_hang_up(sock: socket.socket) -> None:
    """Wait until the peer has closed altogether, and not just stopped sending.

    Its socket stays readable after the end of input, so waiting for that would only spin. An
    epoll that is asked for nothing still tells of a hang-up, and becomes readable itself.

    Raises:
        OSError: there is no descriptor left to wait with.
    """
    with select.epoll() as hang_up:
        hang_up.register(sock, 0)
        await anyio.wait_readable(hang_up.fileno())
