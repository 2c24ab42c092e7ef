"""Daemons that follow a script: for what no real one would say."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio.abc import SocketStream, UNIXSocketStream

from runnerd.socket_io import raw_socket, receive
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import DaemonMessage, Welcome

WELCOME = Welcome(1, 2**24)


async def say(stream: UNIXSocketStream, *messages: DaemonMessage | bytes) -> None:
    await stream.send(b"".join(m if isinstance(m, bytes) else encode_frame(m) for m in messages))


@asynccontextmanager
async def scripted(script: Callable[[UNIXSocketStream], Awaitable[None]]) -> AsyncIterator[Path]:
    """Listen as a daemon that reads once, follows its script, and closes."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "socket")

        async def serve(stream: SocketStream) -> None:
            assert isinstance(stream, UNIXSocketStream)
            async with stream:
                await receive(raw_socket(stream), 2**16)
                await script(stream)

        async def accept() -> None:
            await listener.serve(serve)

        async with (
            await anyio.create_unix_listener(path) as listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(accept)
            yield path
            tasks.cancel_scope.cancel()
