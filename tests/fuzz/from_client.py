"""The daemon's end of the protocol, against a client that sends anything.

Each script is held twice, once with everything that is sent in a burst in one piece, once in
pieces: both must come to the same. A burst ends where the daemon gets to answer. A client that
sends only what the daemon has taken must find the answers legal.
"""

from collections.abc import Iterable

from msgspec.msgpack import Decoder, encode

from runnerd_protocol.connection import ClientConnection, Rejection, ServerConnection
from runnerd_protocol.errors import FAILED_CODES, PROTOCOL_ERROR_CODES
from runnerd_protocol.framing import HEADER_BYTES, encode_frame
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    ClientMessage,
    DaemonMessage,
    Delta,
    Detokenize,
    Embed,
    Embeddings,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    Hello,
    Media,
    MediaWanted,
    MemoryReport,
    Model,
    Plan,
    PromptProgress,
    ProtocolError,
    Status,
    Subscribe,
    Text,
    Tokenize,
    Tokens,
    Welcome,
)
from tests.fuzz.script import Kind, parse
from tests.some_memory import some_memory

MAX_FRAME_BYTES = 8192  # less than a script's data may have, so that frames are too large
MAX_REPLY_BYTES = 2048  # an explanation fits into a few lines, whatever is explained
MAX_PIECES = 64  # of what one act sends: byte by byte is for short frames
MEMORY = some_memory()

_decode = Decoder(ClientMessage).decode


def run(script: bytes) -> None:
    """Hold a script both ways, and compare."""
    assert heard(script, in_pieces=False) == heard(script, in_pieces=True)


def heard(script: bytes, *, in_pieces: bool) -> list[str]:
    """Return what the daemon makes of a script, and what it says."""
    daemon = Daemon()
    burst: list[tuple[bytes, int]] = []
    for act in parse(script):
        match act.kind:
            case Kind.FRAME | Kind.RAW:
                burst.append((act.sent, act.arg))
            case Kind.ANSWER:
                daemon.hear(burst, in_pieces=in_pieces)
                burst = []
                daemon.answer(act.arg)
            case Kind.END:
                daemon.hear(burst, in_pieces=in_pieces)
                burst = []
                daemon.hear_end()
            case _:
                break
    daemon.hear(burst, in_pieces=in_pieces)
    daemon.answer_all()
    return daemon.transcript


def cut(burst: Iterable[tuple[bytes, int]], *, in_pieces: bool) -> Iterable[bytes]:
    """Return what was sent, whole or in pieces of the sizes that its acts say."""
    if not in_pieces:
        yield b"".join(data for data, _ in burst)
        return
    for data, size in burst:
        step = max(size % 67 + 1, len(data) // MAX_PIECES)
        yield from (data[start : start + step] for start in range(0, len(data), step))


class Daemon:
    """A daemon that answers in any legal way, and knows what it owes."""

    def __init__(self) -> None:
        self.server = ServerConnection(MAX_FRAME_BYTES)
        self.client = ClientConnection()  # hears every answer to what was taken
        self.owed: dict[int, ClientMessage | None] = {}  # None: refused
        self.replies: list[Failed | ProtocolError | Welcome] = []
        self.accepted: dict[int, int] = {}  # the bytes of text so far
        self.n_heard = 0
        self.transcript: list[str] = []

    def hear(self, burst: list[tuple[bytes, int]], *, in_pieces: bool) -> None:
        """Take in what was sent since the daemon spoke last."""
        for piece in cut(burst, in_pieces=in_pieces):
            self.n_heard += len(piece)
            was_closed = self.server.state == "closed"
            events = self.server.receive(piece)
            assert not (was_closed and events)
            self.check_sizes(piece)
            for event in events:
                self.take(event)
            assert self.server.active == tuple(self.owed)

    def check_sizes(self, piece: bytes) -> None:
        """What is held is at most one frame, and no more than has come."""
        n_held = len(self.server._frames._pending)
        assert n_held <= min(MAX_FRAME_BYTES + HEADER_BYTES, self.n_heard)
        assert self.server.is_mid_frame == (n_held > 0)
        assert 0 <= self.server.n_missing <= MAX_FRAME_BYTES + HEADER_BYTES
        assert sum(self.server.event_bytes) <= self.n_heard

    def hear_end(self) -> None:
        """Take in that nothing more is sent."""
        rejection = self.server.receive_eof()
        if rejection is not None:
            self.take(rejection)
        assert self.server.state == "closed"

    def take(self, event: ClientMessage | Rejection) -> None:
        """Note an event, and what is owed for it."""
        self.transcript.append(repr(event))
        if isinstance(event, Rejection):
            self.take_rejection(event.reply)
            return
        assert repr(_decode(encode(event))) == repr(event)  # NaN is not equal to itself
        match event:
            case Hello():
                self.client.hello()
                self.replies.append(Welcome(self.server.version or 0, 2**31 - 1))
            case ProtocolError():
                return
            case Cancel(request_id=request_id):
                assert request_id in self.owed
                self.client.send(event)
            case Media(request_id=request_id):
                assert isinstance(self.owed[request_id], Generate)
                self.client.send(event)
            case _:
                assert event.request_id not in self.owed
                self.owed[event.request_id] = event
                self.client.send(event)

    def take_rejection(self, reply: Failed | ProtocolError) -> None:
        """Check that a refusal is of a documented kind, and is short."""
        self.replies.append(reply)
        assert len(encode_frame(reply)) < MAX_REPLY_BYTES
        if reply.code == "invalid_request":
            assert {"field", "limit"} <= set(reply.details)
        if isinstance(reply, ProtocolError):
            assert reply.code in PROTOCOL_ERROR_CODES
            assert not reply.fatal or self.server.state == "closed"
        else:
            assert reply.code in FAILED_CODES
            assert (reply.request_id in self.owed) == (reply.code == "duplicate_id")
            self.owed.setdefault(reply.request_id, None)

    def answer(self, choice: int) -> None:
        """Send the refusals; then move on with each request, or fail it, as the choice says."""
        for reply in self.replies:
            self.say(reply)
        self.replies = []
        for number, (request_id, request) in enumerate(list(self.owed.items())):
            if request is None or choice >> (number % 8) & 1:
                self.say_of(request_id, request, choice)

    def answer_all(self) -> None:
        """Bring everything to its end, unless a fatal error has: nothing is owed any more."""
        for choice in (0, 255, 255, 255):
            self.answer(choice)
        if self.server._order.from_daemon == "open":
            assert not self.owed
            assert not self.client.active
            assert self.server.active == ()

    def say_of(self, request_id: int, request: ClientMessage | None, choice: int) -> None:
        """Say what may come next of a request."""
        match request:
            case _ if choice % 16 == 3:
                self.say(Failed(request_id, "internal", "broken"))
            case Generate() if request_id not in self.accepted:
                self.say(Accepted(request_id))
            case Generate() if choice == 255:
                n_bytes = self.accepted[request_id]
                self.say(Finished(request_id, "stop", n_text_bytes=n_bytes))
            case Generate():
                self.say(Delta(request_id, "é"))
                self.say(MediaWanted(request_id, [bytes(32)]))
                self.say(PromptProgress(request_id))
            case Embed():
                self.say(Embeddings(request_id, [], 0, [], last=choice == 255))
            case Tokenize():
                self.say(Tokens(request_id, []))
            case Detokenize():
                self.say(Text(request_id, ""))
            case Subscribe():
                self.say(Status(request_id, "ready", last=choice == 255))
            case GetStatus():
                self.say(Status(request_id, "ready", last=True))
            case GetModel():
                self.say(Model(request_id, "m", 1, 1, 1))
            case Plan():
                self.say(MemoryReport(request_id, MEMORY))
            case _:
                self.say(Failed(request_id, "unsupported", "of a kind that is new"))

    def say(self, message: DaemonMessage) -> None:
        """Send a message, which the client must find legal if it knows of the request."""
        if self.server._order.from_daemon == "closed":
            return  # it has said its last word
        if self.server._order.from_daemon != "open" and not isinstance(
            message, Welcome | ProtocolError
        ):
            return
        request_id = getattr(message, "request_id", None)
        is_for_the_client = request_id is None or self.owed.get(request_id) is not None
        data = self.server.send(message)
        self.transcript.append(repr(message))
        match message:
            case Accepted():
                self.accepted[message.request_id] = 0
            case Delta():
                self.accepted[message.request_id] += len(message.text.encode())
            case _:
                pass
        if isinstance(message, Failed) and message.code == "duplicate_id":
            return
        if is_for_the_client and self.client.state != "awaiting_hello":
            assert [repr(each) for each in self.client.receive(data)] == [repr(message)]
        if request_id is not None and request_id not in self.server.active:
            del self.owed[request_id]
            self.accepted.pop(request_id, None)
