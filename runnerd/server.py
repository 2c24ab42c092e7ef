"""Listeners, and a session for each connection.

A failing session ends alone: what it raises is logged here and goes no further.
"""

import errno
import socket
from math import inf

import anyio
import structlog
from anyio.abc import TaskGroup, UNIXSocketStream
from anyio.lowlevel import checkpoint

from runnerd.board import Board
from runnerd.frame_room import FrameRoom
from runnerd.peers import Ids, SocketFile, is_allowed, peer_of
from runnerd.planning import Planning
from runnerd.refusals import Refusals
from runnerd.runner import Runner
from runnerd.session import Session
from runnerd.socket_io import accept

log = structlog.get_logger()

ARRIVAL_TURNS = 5  # of the event loop: whoever was accepted before has a session then
LINGER_S = 0.25  # at the end, for requests on their way to be refused in words
UNASKED_S = 2.5  # from its connect on, for a client that has not asked: it may be about to
FLUSH_S = 0.6  # for clients to take their last answers: one that reads nothing holds up no exit
REFUSAL_PAUSE_S = 0.002  # before the next is accepted: a flood of strangers is not to slow anybody
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Server:
    """Accepts connections for one runner, by the limits of its configuration as they are now."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._sessions: dict[int, Session] = {}
        self._n_served = 0
        self._board = Board(runner, lambda: len(self._sessions))
        self._planning = Planning(runner)
        self._room = FrameRoom(runner.intake)
        self._one_left = anyio.Event()
        self._accepting: list[anyio.CancelScope] = []  # of each listening socket
        self._is_accepting = True
        self._ids = Ids.of_this_process()
        self._refusals = Refusals(self._ids)

    @property
    def n_connections(self) -> int:
        """Connections being served."""
        return len(self._sessions)

    async def listen(self, sock: socket.socket, sessions: TaskGroup) -> None:
        """Accept connections of a listening socket until `stop_accepting`; closes it."""
        sock.setblocking(False)
        file = SocketFile(sock)
        with sock, anyio.CancelScope() as accepting:
            self._accepting.append(accepting)
            while self._is_accepting:
                try:
                    connection = await accept(sock)
                except OSError as err:
                    if err.errno not in NO_DESCRIPTORS:
                        raise
                    await self._wait_for_descriptors(err)
                    continue
                if self._lets_in(connection, file):
                    sessions.start_soon(self._serve, connection)
                else:
                    await anyio.sleep(REFUSAL_PAUSE_S)

    async def serve_parent(self, sock: socket.socket) -> None:
        """Serve the one connection that a parent has handed down, until it ends."""
        await self._serve(sock)

    def stop_accepting(self) -> None:
        """Leave further connections to whoever listens next."""
        self._is_accepting = False
        for accepting in self._accepting:
            accepting.cancel()
        self._refusals.sum_up()

    async def close(self) -> None:
        """Give every client its last answers, for a while, then let go of all."""
        for _ in range(ARRIVAL_TURNS):
            await checkpoint()
        with anyio.move_on_after(LINGER_S):
            await self._all_left()
        await self._newcomers_left()
        with anyio.move_on_after(FLUSH_S):
            for session in list(self._sessions.values()):
                session.close()
            await self._all_left()

    async def _newcomers_left(self) -> None:
        """Wait for those who have only just connected; who is idle for longer holds up nothing."""
        is_over = False
        while not is_over:
            born = [each.opened_at for each in self._sessions.values() if not each.was_asked]
            with anyio.CancelScope(deadline=max(born, default=-inf) + UNASKED_S) as scope:
                await self._one_left.wait()
            is_over = scope.cancelled_caught

    async def _all_left(self) -> None:
        while self._sessions:
            await self._one_left.wait()

    async def _wait_for_descriptors(self, err: OSError) -> None:
        """Pause accepting until a session ends: trying again at once would only spin."""
        log.warning("server.out_of_descriptors", error=err.strerror, n_sessions=self.n_connections)
        with anyio.move_on_after(1.0):
            await self._one_left.wait()

    def _lets_in(self, connection: socket.socket, file: SocketFile) -> bool:
        """Whether a client may connect; if not, it has been turned away."""
        try:
            peer = peer_of(connection)
        except OSError as err:  # nobody comes in of whom the kernel cannot tell
            log.warning("client.unknown", error=err.strerror)
            connection.close()
            return False
        socket_gid = file.gid
        if is_allowed(peer, self._runner.config.access, socket_gid, self._ids):
            return True
        self._refusals.not_allowed(connection, peer, socket_gid, anyio.current_time())
        return False

    async def _serve(self, connection: socket.socket) -> None:
        if len(self._sessions) >= self._runner.config.max_connections:
            self._refusals.too_many(connection, self._runner.config.max_connections)
            return
        stream = await UNIXSocketStream.from_socket(connection)  # waits for nothing
        session = Session(
            stream,
            self._runner,
            self._runner.config.session,
            self._board,
            self._planning,
            self._room,
        )
        self._n_served += 1
        number = self._n_served
        self._sessions[number] = session
        try:
            with structlog.contextvars.bound_contextvars(connection=number):
                await session.serve()
        except* Exception:
            log.exception("session.crashed", connection=number)
        finally:
            del self._sessions[number]
            self._one_left.set()
            self._one_left = anyio.Event()
