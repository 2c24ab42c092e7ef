"""Daemons that follow a script: for what no real one would say."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import anyio
from anyio.abc import SocketStream, UNIXSocketStream
from msgspec.msgpack import Decoder

from runnerd.socket_io import raw_socket, receive
from runnerd_protocol.framing import FrameDecoder, encode_frame
from runnerd_protocol.messages import (
    Accepted,
    ClientMessage,
    DaemonMessage,
    Finished,
    Generate,
    Part,
    Welcome,
)
from tests.daemon import PATIENCE_S

M = TypeVar("M", bound=ClientMessage)

WELCOME = Welcome(1, 2**24)

_decode = Decoder(ClientMessage).decode


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


class Peer:
    """The daemon's end: reads messages one by one."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._frames = FrameDecoder()
        self._heard: deque[ClientMessage] = deque()

    async def say(self, *messages: DaemonMessage) -> None:
        await say(self._stream, *messages)

    async def expect(self, kind: type[M]) -> M:
        """Return the next message, which is of this kind."""
        while not self._heard:
            data = await receive(raw_socket(self._stream), 2**16)
            assert data, f"the client left without a {kind.__name__}"
            self._heard.extend(map(_decode, self._frames.feed(data)))
        message = self._heard.popleft()
        assert isinstance(message, kind), message
        return message

    async def expect_parts(self) -> list[Part]:
        """Accept a generation and end it; return its prompt."""
        asked = await self.expect(Generate)
        await self.end(asked.request_id, Accepted(asked.request_id))
        assert not isinstance(asked.prompt, str)
        return asked.prompt

    async def end(self, request_id: int, *before: DaemonMessage) -> None:
        await self.say(*before, Finished(request_id, "length"))


def talking(
    talk: Callable[[Peer], Awaitable[None]], welcome: Welcome = WELCOME
) -> Callable[[UNIXSocketStream], Awaitable[None]]:
    """Return a script that welcomes a client and then talks to it."""

    async def script(stream: UNIXSocketStream) -> None:
        peer = Peer(stream)
        await peer.say(welcome)
        with anyio.fail_after(PATIENCE_S):
            await talk(peer)

    return script
