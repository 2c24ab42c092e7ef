"""One connection: reads requests, writes answers, until either end has had enough.

The reader hands on each message and never waits for its answer. The writer sends what the
outbox holds. A peer that has closed loses its requests; one that has only stopped sending gets
its answers first. Whatever goes wrong here ends this session and no other.
"""

import select

import anyio
import structlog
from anyio.abc import UNIXSocketStream

from runnerd.board import Board
from runnerd.config import SessionLimits
from runnerd.outbox import Outbox
from runnerd.planning import Planning
from runnerd.replies import SERVER_NAME
from runnerd.requests import Requests
from runnerd.runner import Runner
from runnerd.socket_io import raw_socket, receive, send
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

READ_BYTES = 2**14  # at a time: 25 ms of work for everybody to wait for, if it is all garbage
BULK_BYTES = 2**18  # of a frame that has begun and lacks as much: a socket's buffer holds no more


class Session:
    """Serves one connected client."""

    def __init__(
        self,
        stream: UNIXSocketStream,
        runner: Runner,
        limits: SessionLimits,
        board: Board,
        planning: Planning,
    ) -> None:
        self._stream = stream
        self._socket = raw_socket(stream)
        self._limits = limits
        self._connection = ServerConnection(limits.max_frame_bytes)
        self._tasks = anyio.create_task_group()
        self._outbox = Outbox(limits.outbox_bytes, self._on_full)
        self._requests = Requests(runner, self._outbox, self._tasks, limits, board, planning)
        self._is_closing = False
        self._last_word: ProtocolError | None = None
        self._n_complaints = 0

    async def serve(self) -> None:
        """Serve until the client has gone or has broken the protocol, or `close` is called."""
        try:
            async with self._stream, self._tasks:
                self._tasks.start_soon(self._write)
                await self._read()
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            log.debug("session.reset", n_requests=len(self._requests))
        finally:
            self._requests.cancel_all()
            if self._n_complaints > 1:
                log.warning("client.kept_complaining", n_more=self._n_complaints - 1)

    def close(self) -> None:
        """Send every answer that is owed, then close; a subscription would never end by itself."""
        self._requests.cancel_all(only_subscriptions=True)
        self._is_closing = True
        self._outbox.ring()

    def _on_full(self, request_id: int, is_full: bool) -> None:  # a callback
        self._requests.pause(request_id, is_full)

    # --- reading ---------------------------------------------------------------------------

    async def _read(self) -> None:
        deadline = anyio.current_time() + self._limits.handshake_timeout_s
        n_frames = 0
        while self._connection.state != "closed":
            try:
                with anyio.fail_after(deadline - anyio.current_time()):
                    data = await self._receive()
            except TimeoutError:
                self._break_off(self._timeout())
                return
            if not data:
                self._end_of_input()
                return
            self._take_in(data)
            stopped_at = anyio.current_time()
            with self._requests.uploads.unread():
                await self._outbox.wait_for_room()
                await self._requests.wait_for_room()
            deadline += anyio.current_time() - stopped_at  # that it took so long was our doing
            if self._connection.version is None:
                continue
            if not self._connection.is_mid_frame:
                deadline = float("inf")
                self._requests.uploads.end_frame()
            elif deadline == float("inf") or n_frames != self._connection.n_frames:
                deadline = anyio.current_time() + self._limits.frame_timeout_s
                self._requests.uploads.begin_frame()
            n_frames = self._connection.n_frames

    async def _receive(self) -> bytes:
        """Return what there is: much amid a large frame, with which nothing is to be done yet."""
        n_missing = self._connection.n_missing
        if n_missing <= READ_BYTES:
            return await receive(self._socket, READ_BYTES)
        return await receive(self._socket, min(n_missing, BULK_BYTES))

    def _take_in(self, data: bytes) -> None:
        """Act on what has come; none of it is held here while the next read waits."""
        events = self._connection.receive(data)
        for event, n_bytes in zip(events, self._connection.event_bytes, strict=True):
            self._handle(event, n_bytes)

    def _timeout(self) -> ProtocolError:
        if self._connection.version is None:
            seconds = self._limits.handshake_timeout_s
            return ProtocolError("handshake_timeout", f"no hello within {seconds} s")
        seconds = self._limits.frame_timeout_s
        return ProtocolError("frame_timeout", f"a frame was not complete within {seconds} s")

    def _end_of_input(self) -> None:
        """Let the requests of a client that sends no more run to their end."""
        rejection = self._connection.receive_eof()
        if rejection is not None and isinstance(rejection.reply, ProtocolError):
            self._last_word = rejection.reply
        self._close_unread()

    def _close_unread(self) -> None:
        """Close once all is answered; nobody reads any more, so see to it if the client goes."""
        self._requests.uploads.end()
        self._tasks.start_soon(self._watch_for_hang_up)
        self.close()

    async def _watch_for_hang_up(self) -> None:
        """Drop everything once the client has closed altogether, now or later.

        Its socket stays readable after the end of input, so waiting for that would only spin. An
        epoll that is asked for nothing still tells of a hang-up, and becomes readable itself.
        """
        try:
            hang_up = select.epoll()
        except OSError as err:  # out of descriptors: only a failing write will tell
            log.warning("session.unwatched", error=err.strerror)
            return
        with hang_up:
            hang_up.register(self._socket, 0)
            await anyio.wait_readable(hang_up.fileno())
        self._tasks.cancel_scope.cancel()

    def _handle(self, event: ClientMessage | Rejection, n_bytes: int) -> None:
        match event:
            case Rejection(reply=ProtocolError(fatal=True) as reply):
                self._break_off(reply)
            case Rejection(reply=reply):
                self._outbox.put(reply)
            case Hello():
                version = self._connection.version or 0
                self._outbox.put(Welcome(version, self._limits.max_frame_bytes, SERVER_NAME))
            case Cancel(request_id=request_id):
                self._requests.cancel(request_id)
            case Media():
                self._requests.put_file(event, n_bytes)
            case ProtocolError():
                self._n_complaints += 1
                if self._n_complaints == 1:  # a client must not fill the log
                    log.warning("client.complained", code=event.code, text=event.message)
                if event.fatal:
                    self._tasks.cancel_scope.cancel()
            case _:
                self._requests.start(event, n_bytes)

    def _break_off(self, reply: ProtocolError) -> None:
        """Cancel the client's requests, tell it what it did wrong, and close.

        Nothing may follow a fatal error, so it waits for the requests to be answered.
        """
        log.info("session.broken_off", code=reply.code, text=reply.message)
        self._last_word = reply
        self._requests.cancel_all()
        self._close_unread()

    # --- writing ---------------------------------------------------------------------------

    async def _write(self) -> None:
        """Send until the session closes and every answer that is owed has gone out."""
        while not (self._is_closing and self._outbox.is_empty and not self._requests):
            await self._send([self._encode(message) for message in await self._outbox.take()])
        if self._last_word is not None:
            await self._send([self._encode(self._last_word)])
        self._tasks.cancel_scope.cancel()

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
            assert not isinstance(message, Welcome | ProtocolError)
            return self._connection.send(Failed(message.request_id, "answer_too_large", str(err)))
