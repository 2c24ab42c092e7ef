"""Reading from a socket in a way that may be cancelled at any moment."""

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint


async def receive(stream: SocketStream, n_bytes: int) -> bytes:
    """Return up to so many bytes as soon as there are some; none at the end of the stream.

    The stream's own `receive` is cancelled badly on asyncio when bytes arrive in the same turn of
    the loop: the loop logs an InvalidStateError. A peer that is cut off while it speaks, and a
    client that leaves while it is answered, do just that all the time.

    Raises:
        anyio.BrokenResourceError: the connection was reset.
    """
    sock = stream.extra(SocketAttribute.raw_socket)
    await checkpoint()  # a peer that always has more to say must not be all that we hear
    while True:
        try:
            return sock.recv(n_bytes)
        except BlockingIOError:
            await anyio.wait_readable(sock)
        except OSError as err:
            raise anyio.BrokenResourceError from err
