"""A client of which anything must be expected; an oracle judges what the daemon says to it."""

from collections.abc import Callable
from socket import AF_UNIX, SHUT_WR, socket

import anyio
from msgspec.msgpack import Decoder

from runnerd_protocol.framing import FrameDecoder, encode_frame
from runnerd_protocol.messages import Cancel, ClientMessage, DaemonMessage, GetStatus, Hello
from tests.daemon import PATIENCE_S, Daemon
from tests.fuzz.oracle import NO_ID, Oracle, takes_a_process
from tests.fuzz.script import Act, Kind

FIRST_FREE_ID = 2**62  # for questions of the peer's own
PADDING_BYTES = 2**17  # at most, to complete a frame that a script has left open

_decode = Decoder(DaemonMessage).decode


class Peer:
    """One connection, from its beginning to its end."""

    def __init__(self, daemon: Daemon) -> None:
        self.oracle = Oracle(daemon.runner.config.session.max_frame_bytes)
        self.is_gone = False
        self._socket = socket(AF_UNIX)
        self._socket.connect(str(daemon.path))
        self._socket.setblocking(False)
        self._frames = FrameDecoder(2**31)
        self._next_id = FIRST_FREE_ID
        self._sends_no_more = False
        self._reads = anyio.Event()
        self._reads.set()
        self._news = anyio.Event()
        self._has_ended = anyio.Event()  # for the daemon

    async def listen(self) -> None:
        """Hand to the oracle whatever comes, until either end has had enough."""
        while True:
            await self._reads.wait()
            if self.is_gone:
                break
            try:
                await anyio.wait_readable(self._socket)
                data = self._socket.recv(2**16) if self._reads.is_set() else None
            except BlockingIOError:
                continue
            except (OSError, anyio.ClosedResourceError):
                break
            if data == b"":
                break
            for payload in self._frames.feed(data or b""):
                self.oracle.heard(_decode(payload))
            self._news.set()
        self._has_ended.set()
        self._news.set()

    async def do(self, act: Act) -> None:
        """Carry out one act of a script."""
        match act.kind:
            case Kind.FRAME | Kind.RAW:
                if not takes_a_process(act.sent):
                    await self._send(act.sent)
            case Kind.ANSWER:
                await self._wait_for_an_answer()
            case Kind.END:
                self._end()
            case Kind.RESET:
                self.close()
            case Kind.PAUSE if self._reads.is_set():
                self._reads = anyio.Event()
            case _:
                self._reads.set()

    async def take_back(self) -> None:
        """Cancel all that is in progress, or go where nobody would listen."""
        self._reads.set()
        if self.is_gone or not self.oracle.is_open:
            return
        if self._sends_no_more:
            if self.oracle.is_endless:
                self.close()
            return
        if self.oracle.n_missing > PADDING_BYTES:
            self.close()
            return
        while self.oracle.n_missing and self.oracle.is_open:
            await self._send(bytes(self.oracle.n_missing))
        if not self.oracle.is_greeted:
            await self._say(Hello(1, 1))
        for request_id in list(self.oracle.owed - self.oracle.paid):
            if request_id != NO_ID:
                await self._say(Cancel(request_id))
        await self._say(GetStatus(self._take_id()))  # by then, what else was said has been heard

    async def settle(self) -> None:
        """Wait for all that is owed, and for the connection's end where it must end."""
        oracle = self.oracle
        ends = self._sends_no_more or not oracle.is_open
        await self._until(lambda: self.is_gone or (oracle.is_settled and not ends))
        if not (self.is_gone or oracle.is_ended):
            assert oracle.is_settled, f"{oracle.owed} owed, {oracle.paid} paid: {oracle.said}"
            assert oracle.has_last_word == oracle.is_fatal, oracle.said
            assert self._has_ended.is_set() == ends, oracle.said
        self.close()

    def close(self) -> None:
        """Go; what is still to be read makes it a reset."""
        if not self.is_gone:
            self.is_gone = True
            self._reads.set()
            anyio.notify_closing(self._socket)
            self._socket.close()

    async def _wait_for_an_answer(self) -> None:
        """Ask how the daemon is, which it tells at any time, and wait until it does."""
        self._reads.set()
        oracle = self.oracle
        if not oracle.is_greeted or not oracle.is_open or oracle.n_missing or self._sends_no_more:
            return
        request_id = self._take_id()
        await self._say(GetStatus(request_id))
        await self._until(lambda: oracle.paid[request_id] > 0)
        assert oracle.paid[request_id] or self._has_ended.is_set(), f"no answer: {oracle.said}"

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until something has come true, or the daemon has ended, or too long."""
        with anyio.move_on_after(PATIENCE_S):
            while not (holds() or self._has_ended.is_set()):
                self._news = anyio.Event()
                await self._news.wait()

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def _say(self, message: ClientMessage) -> None:
        await self._send(encode_frame(message))

    async def _send(self, data: bytes) -> None:
        """Send, and read on where the daemon would wait for that."""
        if self._sends_no_more or self.is_gone:
            return
        self.oracle.sent(data)
        left = memoryview(data)
        while left and not self._has_ended.is_set():
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._reads.set()
                await anyio.wait_writable(self._socket)
            except OSError:  # the daemon has closed; whether it should have, the end will tell
                return

    def _end(self) -> None:
        if not (self._sends_no_more or self._has_ended.is_set()):
            self._sends_no_more = True
            self.oracle.sent_end()
            try:
                self._socket.shutdown(SHUT_WR)
            except OSError:
                return  # the daemon was first
