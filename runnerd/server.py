"""Listeners, and a session for each connection.

A failing session ends alone: what it raises is logged here and goes no further.
"""

import errno
import socket

import anyio
import structlog
from anyio.abc import SocketListener, TaskGroup, UNIXSocketStream

from runnerd.board import Board
from runnerd.config import Config
from runnerd.planning import Planning
from runnerd.runner import Runner
from runnerd.session import Session
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import ProtocolError

log = structlog.get_logger()

FLUSH_S = 0.8  # for clients to take their last answers: one that reads nothing holds up no exit
REFUSE_S = 1.0  # for a refused client to take the reason
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Server:
    """Accepts connections for one runner."""

    def __init__(self, config: Config, runner: Runner) -> None:
        self._config = config
        self._runner = runner
        self._sessions: dict[int, Session] = {}
        self._n_served = 0
        self._board = Board(runner, lambda: len(self._sessions))
        self._planning = Planning(runner)
        self._one_left = anyio.Event()
        self._accepting = anyio.CancelScope()

    @property
    def n_connections(self) -> int:
        """Connections being served."""
        return len(self._sessions)

    async def listen(self, sock: socket.socket, sessions: TaskGroup) -> None:
        """Accept connections of a listening socket until `stop_accepting`."""
        async with await SocketListener.from_socket(sock) as listener:
            with self._accepting:
                while True:
                    try:
                        stream = await listener.accept()
                    except (OSError, anyio.BrokenResourceError) as err:
                        # What accept(2) said; anyio has it wrapped on asyncio.
                        cause = err if isinstance(err, OSError) else err.__cause__
                        if not isinstance(cause, OSError) or cause.errno not in NO_DESCRIPTORS:
                            raise
                        await self._wait_for_descriptors(cause)
                        continue
                    assert isinstance(stream, UNIXSocketStream)
                    sessions.start_soon(self._serve, stream)

    async def serve_parent(self, sock: socket.socket) -> None:
        """Serve the one connection that a parent has handed down, until it ends."""
        await self._serve(await UNIXSocketStream.from_socket(sock))

    def stop_accepting(self) -> None:
        """Leave further connections to whoever listens next."""
        self._accepting.cancel()

    async def close(self) -> None:
        """Give every client its last answers, for a while, then let go of all."""
        with anyio.move_on_after(FLUSH_S):
            for session in list(self._sessions.values()):
                session.close()
            while self._sessions:
                await self._one_left.wait()

    async def _wait_for_descriptors(self, err: OSError) -> None:
        """Pause accepting until a session ends: trying again at once would only spin."""
        log.warning("server.out_of_descriptors", error=err.strerror, n_sessions=self.n_connections)
        with anyio.move_on_after(1.0):
            await self._one_left.wait()

    async def _serve(self, stream: UNIXSocketStream) -> None:
        if len(self._sessions) >= self._config.max_connections:
            await self._refuse(stream)
            return
        session = Session(stream, self._runner, self._config.session, self._board, self._planning)
        self._n_served += 1
        number = self._n_served
        self._sessions[number] = session
        try:
            await session.serve()
        except* Exception:
            log.exception("session.crashed", session=number)
        finally:
            del self._sessions[number]
            self._one_left.set()
            self._one_left = anyio.Event()

    async def _refuse(self, stream: UNIXSocketStream) -> None:
        limit = self._config.max_connections
        reply = ProtocolError(
            "too_many_connections",
            f"{limit} connections are open, the limit is {limit}",
            details={"max_connections": limit},
        )
        async with stream:
            with anyio.move_on_after(REFUSE_S):
                try:
                    await stream.send(encode_frame(reply))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    log.debug("server.refused_client_gone")
