"""A client's end of the protocol, against a daemon that sends anything.

As with the daemon's end, a script is held whole and in pieces. A generation is only complete
where all of its text has come.
"""

from collections.abc import Sequence

from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.errors import LocalProtocolError, RemoteProtocolError
from runnerd_protocol.framing import HEADER_BYTES
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    ClientMessage,
    DaemonMessage,
    Delta,
    Detokenize,
    Embed,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    Media,
    Plan,
    Subscribe,
    Tokenize,
)
from tests.fuzz.from_client import MAX_FRAME_BYTES, cut
from tests.fuzz.script import Kind, parse

# In the range of ids that hostile messages are about.
REQUESTS: list[ClientMessage] = [
    Generate(0, "a"),
    Embed(1, ["a"]),
    Tokenize(2, "a"),
    Subscribe(3),
    Plan(4),
    Generate(5, "b"),
    GetModel(6),
    GetStatus(7),
    Detokenize(8, [1]),
]


def run(script: bytes) -> None:
    """Hold a script both ways, and compare."""
    assert heard(script, in_pieces=False) == heard(script, in_pieces=True)


def heard(script: bytes, *, in_pieces: bool) -> list[str]:
    """Return what a client makes of a script."""
    client = Client()
    burst: list[tuple[bytes, int]] = []
    try:
        for act in parse(script):
            match act.kind:
                case Kind.FRAME | Kind.RAW:
                    burst.append((act.sent, act.arg))
                case Kind.ANSWER:
                    client.hear(burst, in_pieces=in_pieces)
                    burst = []
                    client.ask(act.arg)
                case _:
                    break
        client.hear(burst, in_pieces=in_pieces)
        client.hear_end()
    except RemoteProtocolError as err:
        client.note(err.messages)
        client.transcript.append(f"{type(err).__name__}: {err}")
    return client.transcript


class Client:
    """A client that has asked for everything there is."""

    def __init__(self) -> None:
        self.connection = ClientConnection(MAX_FRAME_BYTES)
        self.n_text_bytes: dict[int, int] = {}
        self.n_heard = 0
        self.transcript: list[str] = []
        self.connection.hello()
        for request in REQUESTS:
            self.connection.send(request)

    def hear(self, burst: list[tuple[bytes, int]], *, in_pieces: bool) -> None:
        """Take in what the daemon has sent."""
        for piece in cut(burst, in_pieces=in_pieces):
            self.n_heard += len(piece)
            was_closed = self.connection.state == "closed"
            messages = self.connection.receive(piece)
            assert not (was_closed and messages)
            self.note(messages)
            n_held = len(self.connection._frames._pending)
            assert n_held <= min(MAX_FRAME_BYTES + HEADER_BYTES, self.n_heard)

    def note(self, messages: Sequence[DaemonMessage]) -> None:
        """Count the text by itself, and compare it with what a `Finished` says."""
        for message in messages:
            self.transcript.append(repr(message))
            match message:
                case Accepted():
                    assert self.n_text_bytes.setdefault(message.request_id, 0) == 0
                case Delta():
                    self.n_text_bytes[message.request_id] += len(message.text.encode())
                case Finished():
                    assert message.n_text_bytes == self.n_text_bytes.pop(message.request_id)
                case Failed(code="duplicate_id"):
                    pass
                case Failed():
                    self.n_text_bytes.pop(message.request_id, None)
                case _:
                    pass

    def ask(self, choice: int) -> None:
        """Send something, whether it is legal by now or not."""
        request_id = choice >> 2
        for message in (
            (Cancel(request_id), Generate(request_id, "c")),
            (Media(request_id, b"GIF"),),
            (Subscribe(request_id),),
            (Generate(request_id, "d"), Cancel(request_id)),
        )[choice % 4]:
            try:
                self.connection.send(message)
            except LocalProtocolError as err:
                self.transcript.append(f"not sent: {err}")

    def hear_end(self) -> None:
        """Take in that nothing more is sent: what is owed is lost, or all is there."""
        self.connection.receive_eof()
        assert not self.connection.active
