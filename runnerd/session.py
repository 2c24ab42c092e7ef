"""One connection: reads requests, writes answers, until either end has had enough.

The reader hands on each message and never waits for its answer. The writer sends what the
outbox holds. A peer that has closed loses its requests; one that has only stopped sending gets
its answers first. Whatever goes wrong here ends this session and no other.
"""

import anyio
import structlog
from anyio.abc import UNIXSocketStream

from runnerd.board import Board
from runnerd.complaints import Complaints
from runnerd.config import SessionLimits
from runnerd.errors import Internal
from runnerd.frame_clock import FrameClock
from runnerd.frame_room import FrameInRoom, FrameRoom
from runnerd.outbox import Outbox
from runnerd.planning import Planning
from runnerd.replies import SERVER_NAME
from runnerd.request_log import log_failed, numbers_in
from runnerd.requests import Requests
from runnerd.runner import Runner
from runnerd.socket_io import raw_socket, receive, send, until_hang_up
from runnerd_protocol.connection import Rejection, ServerConnection
from runnerd_protocol.errors import MessageTooLarge
from runnerd_protocol.messages import (
    Cancel,
    ClientMessage,
    DaemonMessage,
    Failed,
    Hello,
    Media,
    ProtocolError,
    Welcome,
)

log = structlog.get_logger()

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)  # the client, or `close` of ours
READ_BYTES = 2**14  # at a time: 25 ms of work for everybody to wait for, if it is all garbage
BULK_BYTES = 2**18  # of a frame that has begun and lacks as much: a socket's buffer holds no more


class Session:
    """Serves one client, connected at `opened_at`."""

    def __init__(
        self,
        stream: UNIXSocketStream,
        runner: Runner,
        limits: SessionLimits,
        board: Board,
        planning: Planning,
        room: FrameRoom,
    ) -> None:
        self._stream = stream
        self._socket = raw_socket(stream)
        self._limits = limits
        self._connection = ServerConnection(limits.max_frame_bytes)
        self._room = room
        self._frame = FrameInRoom(room)
        self._tasks = anyio.create_task_group()
        self._outbox = Outbox(limits.outbox_bytes, self._on_full)
        self._requests = Requests(runner, self._outbox, self._tasks, limits, board, planning)
        self.opened_at = anyio.current_time()
        self._is_closing = False
        self._last_word: ProtocolError | None = None
        self._complaints = Complaints()

    async def serve(self) -> None:
        """Serve until the client has gone or has broken the protocol, or `close` is called."""
        try:
            async with self._stream, self._tasks:
                self._tasks.start_soon(self._write)
                await self._read_on()
        except* GONE:
            log.debug("session.reset", n_requests=len(self._requests))
        finally:
            self._connection.abandon()  # or half a frame would stay until garbage is collected
            self._frame.let_go()
            self._requests.cancel_all()
            self._complaints.sum_up()

    @property
    def was_asked(self) -> bool:
        """Whether the client has sent more than its greeting."""
        return self._connection.n_frames > 1

    def close(self) -> None:
        """Send every answer that is owed, then close; a subscription would never end by itself."""
        self._requests.cancel_all(only_subscriptions=True)
        self._is_closing = True
        self._outbox.ring()

    def _on_full(self, request_id: int, is_full: bool) -> None:  # a callback
        self._requests.pause(request_id, is_full)

    # --- reading ---------------------------------------------------------------------------

    async def _read_on(self) -> None:
        """Read as long as there is anything to read, and we make no mistake about it."""
        try:
            await self._read()
        except GONE:
            raise
        except Exception:
            self._break_off(self._own_fault())

    async def _read(self) -> None:
        clock = FrameClock(self._connection, self._limits, self._requests.uploads)
        try:
            while self._connection.state != "closed":
                with anyio.fail_after(clock.left_s):
                    data = await self._receive()
                if not data:
                    self._end_of_input()
                    return
                self._take_in(data)
                await self._wait_for_room(clock)
                clock.follow()
        except TimeoutError:
            self._break_off(clock.verdict)

    async def _wait_for_room(self, clock: FrameClock) -> None:
        """Wait until more can be read, while the frame's clock stands still.

        It goes on for who does not read what we send, and has room that others wait for.
        """
        connection = self._connection
        with self._requests.uploads.unread():
            stopped_at = anyio.current_time()
            self._frame.let_go_if_complete(connection.n_frames, connection.n_pending)
            has_room = self._frame.is_in_room
            with anyio.fail_after(clock.left_s if has_room else None):
                await self._outbox.wait_for_room()
            if has_room:
                stopped_at = anyio.current_time()
            await self._requests.wait_for_room()
            await self._frame.follow(
                connection.n_frames, connection.n_pending, connection.n_missing
            )
            clock.allow(anyio.current_time() - stopped_at)

    async def _receive(self) -> bytes:
        """Return what there is: much amid a large frame, with which nothing is to be done yet."""
        n_missing = self._connection.n_missing
        if n_missing <= READ_BYTES:
            return await receive(self._socket, READ_BYTES)
        await anyio.wait_readable(self._socket)
        async with self._room.turn:  # who has little to say is not to wait for all who have much
            return await receive(self._socket, min(n_missing, BULK_BYTES))

    def _take_in(self, data: bytes) -> None:
        """Act on what has come; none of it is held here while the next read waits."""
        events = self._connection.receive(data)
        for event, n_bytes in zip(events, self._connection.event_bytes, strict=True):
            self._handle(event, n_bytes)

    def _end_of_input(self) -> None:
        """Let the requests of a client that sends no more run to their end."""
        rejection = self._connection.receive_eof()
        if rejection is not None and isinstance(rejection.reply, ProtocolError):
            self._last_word = rejection.reply
        self._close_unread()

    def _close_unread(self) -> None:
        """Close once all is answered; nobody reads any more, so see to it if the client goes."""
        self._connection.abandon()
        self._frame.let_go()
        self._requests.uploads.end()
        self._tasks.start_soon(self._watch_for_hang_up)
        self.close()

    async def _watch_for_hang_up(self) -> None:
        """Drop everything once the client has closed altogether, now or later."""
        try:
            await until_hang_up(self._socket)
        except OSError as err:  # out of descriptors: only a failing write will tell
            log.warning("session.unwatched", error=err.strerror)
            return
        self._tasks.cancel_scope.cancel()

    def _handle(self, event: ClientMessage | Rejection, n_bytes: int) -> None:
        match event:
            case Rejection(reply=ProtocolError(fatal=True) as reply):
                self._break_off(reply)
            case Rejection(reply=reply):
                self._outbox.put(reply)
                if isinstance(reply, Failed):
                    log_failed(reply.code, {"request_id": reply.request_id, "code": reply.code})
                else:
                    log.info("session.message_rejected", code=reply.code)
            case Hello():
                version = self._connection.version or 0
                self._outbox.put(Welcome(version, self._limits.max_frame_bytes, SERVER_NAME))
            case Cancel(request_id=request_id):
                self._requests.cancel(request_id)
            case Media():
                self._requests.put_file(event, n_bytes)
            case ProtocolError():
                self._complaints.note(event)
                if event.fatal:
                    self._tasks.cancel_scope.cancel()
            case _:
                self._requests.start(event, n_bytes)

    def _break_off(self, reply: ProtocolError) -> None:
        """Cancel the client's requests, tell it why, and close.

        Nothing may follow a fatal error, so it waits for the requests to be answered.
        """
        log.info("session.broken_off", code=reply.code, **numbers_in(reply.details))
        self._last_word = reply
        self._requests.cancel_all()
        self._close_unread()

    # --- writing ---------------------------------------------------------------------------

    async def _write(self) -> None:
        """Send until the session closes and every answer that is owed has gone out."""
        try:
            while not (self._is_closing and self._outbox.is_empty and not self._requests):
                await self._send([self._encode(message) for message in await self._outbox.take()])
        except GONE:
            raise
        except Exception:  # an answer is lost: the client must not wait for it
            self._last_word = self._own_fault()
        if self._last_word is not None:
            await self._send([self._encode(self._last_word)])
        self._tasks.cancel_scope.cancel()

    def _own_fault(self) -> ProtocolError:
        """Log the error that is being handled, fail all requests, and return the last word."""
        log.exception("session.crashed")
        self._requests.fail_all(Internal())
        return ProtocolError("internal", str(Internal()))

    async def _send(self, frames: list[bytes]) -> None:
        try:
            await send(self._socket, b"".join(frames), self._limits.write_timeout_s)
        except TimeoutError:
            log.warning("session.slow_reader", n_requests=len(self._requests))
            self._tasks.cancel_scope.cancel()

    def _encode(self, message: DaemonMessage) -> bytes:
        try:
            return self._connection.send(message)
        except MessageTooLarge as err:
            log.info("session.answer_too_large", max_frame_bytes=self._limits.max_frame_bytes)
            assert not isinstance(message, Welcome | ProtocolError)
            return self._connection.send(Failed(message.request_id, "answer_too_large", str(err)))
