"""One connection, seen from either end: bytes in, messages out, and back, without I/O.

`ServerConnection.receive` never raises, whatever a peer sends: what is wrong comes back as a
`Rejection` with the answer ready. Sending out of order raises `LocalProtocolError`.
"""

from dataclasses import dataclass

from msgspec import DecodeError
from msgspec.msgpack import Decoder

from runnerd_protocol.errors import (
    Details,
    FrameTooLarge,
    IncompleteStream,
    LocalProtocolError,
    ProtocolErrorCode,
    RemoteProtocolError,
)
from runnerd_protocol.faults import Fault, find_fault, is_from_newer_peer
from runnerd_protocol.framing import DEFAULT_MAX_FRAME_BYTES, FrameDecoder, encode_frame
from runnerd_protocol.messages import (
    PROTOCOL_VERSION,
    Accepted,
    ClientMessage,
    DaemonMessage,
    Delta,
    Failed,
    Finished,
    Hello,
    ProtocolError,
    Welcome,
)
from runnerd_protocol.order import ClientSide, DaemonSide, DuplicateId, Order, OutOfOrder

MIN_VERSION = MAX_VERSION = PROTOCOL_VERSION
MAX_REQUEST_ID = 2**63 - 1

_decode_client_message = Decoder(ClientMessage).decode
_decode_daemon_message = Decoder(DaemonMessage).decode


@dataclass(frozen=True, slots=True)
class Rejection:
    """A bad message, with the answer to send. Close the connection after a `fatal` one."""

    reply: Failed | ProtocolError


class ServerConnection:
    """The daemon's end of a connection.

    A session hands what it reads to `receive`, answers each event in turn through `send`
    (a `Hello` with `welcome`, a `Rejection` with its reply), and writes the frames it gets.
    """

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.version: int | None = None
        self.event_bytes: list[int] = []
        self._order = Order()
        self._frames = FrameDecoder(max_frame_bytes)

    @property
    def state(self) -> ClientSide:
        """What is expected of the client; "closed": nothing more is read from it."""
        return self._order.from_client

    @property
    def active(self) -> tuple[int, ...]:
        """The ids that are owed an answer, oldest first; a rejected one until its `Failed`."""
        return tuple(self._order.phases)

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._frames.is_mid_frame

    @property
    def n_pending(self) -> int:
        """How many bytes of the frame in progress are held here."""
        return self._frames.n_pending

    @property
    def n_missing(self) -> int:
        """How many bytes the frame in progress lacks, as far as it is known; 0: there is none."""
        return self._frames.n_missing

    @property
    def n_frames(self) -> int:
        """Complete frames so far: while it stands still, an incomplete one is the same."""
        return self._frames.n_frames

    def receive(self, data: bytes) -> list[ClientMessage | Rejection]:
        """Return what the client has said, in order; what is about nothing is left out.

        After a fatal rejection, or the client's own fatal `ProtocolError`, nothing is read.
        `event_bytes` are then the payload bytes of each of these events.
        """
        events: list[ClientMessage | Rejection] = []
        self.event_bytes = []
        oversized: FrameTooLarge | None = None
        try:
            payloads = [] if self.state == "closed" else self._frames.feed(data)
        except FrameTooLarge as err:
            payloads, oversized = err.payloads, err
        for payload in payloads:
            event = self._read(payload)
            if event is not None:
                events.append(event)
                self.event_bytes.append(len(payload))
            if self.state == "closed":
                return events
        if oversized is not None:
            details: Details = {"declared": oversized.declared, "limit": oversized.limit}
            events.append(self._end("frame_too_large", str(oversized), details))
            self.event_bytes.append(0)
        return events

    def receive_eof(self) -> Rejection | None:
        """Note that the client sends no more; its requests go on. Amid a frame is an error."""
        if self.state != "closed" and self.is_mid_frame:
            return self._end("frame_incomplete", "the stream ended amid a frame")
        self._order.from_client = "closed"
        return None

    def abandon(self) -> None:
        """Read nothing more, and drop what has come of a frame."""
        self._order.from_client = "closed"
        self._frames = FrameDecoder(self.max_frame_bytes)

    def welcome(self, server: str = "") -> bytes:
        """Return the frame that answers `Hello`."""
        if self.version is None:
            raise LocalProtocolError("welcome before a version is agreed")
        return self.send(Welcome(self.version, self.max_frame_bytes, server))

    def send(self, message: DaemonMessage) -> bytes:
        """Return the message as a frame.

        Raises:
            MessageTooLarge: it does not fit; the request is as it was, and can still fail.
            LocalProtocolError: it cannot be encoded, or it is not legal now.
        """
        frame = encode_frame(message, self.max_frame_bytes)
        try:
            self._order.daemon_sends(message)
        except OutOfOrder as err:
            raise LocalProtocolError(str(err)) from err
        return frame

    def _read(self, payload: bytes) -> ClientMessage | Rejection | None:
        try:
            message = _decode_client_message(payload)
        except (DecodeError, RecursionError) as err:
            return self._refuse(find_fault(payload, err))
        try:
            matters = self._order.client_sends(message)
        except DuplicateId as err:
            return Rejection(Failed(err.request_id, "duplicate_id", str(err)))
        except OutOfOrder as err:
            return self._refuse(Fault("bad_message", str(err), None, {}))
        if isinstance(message, Hello):
            return self._negotiate(message)
        return message if matters else None

    def _negotiate(self, hello: Hello) -> Hello | Rejection:
        version = min(hello.max_version, MAX_VERSION)
        if version >= max(hello.min_version, MIN_VERSION):
            self.version = version
            return hello
        return self._end(
            "unsupported_version",
            f"the client speaks versions {hello.min_version} to {hello.max_version}, "
            f"the daemon {MIN_VERSION} to {MAX_VERSION}",
            {
                "client_min": hello.min_version,
                "client_max": hello.max_version,
                "daemon_min": MIN_VERSION,
                "daemon_max": MAX_VERSION,
            },
        )

    def _refuse(self, fault: Fault) -> Rejection:
        """Answer a bad message to its id if that is free: an active request is not touched."""
        if self.state == "awaiting_hello":
            return self._end(fault.code, fault.message, fault.details)
        request_id = fault.request_id
        if request_id is not None and request_id not in self._order.phases:
            self._order.phases[request_id] = "refused"
            return Rejection(Failed(request_id, fault.code, fault.message, False, fault.details))
        details = (
            fault.details if request_id is None else {"request_id": request_id, **fault.details}
        )
        return Rejection(ProtocolError(fault.code, fault.message, False, details))

    def _end(
        self,
        code: ProtocolErrorCode,
        message: str,
        details: Details | None = None,
    ) -> Rejection:
        self._order.from_client = "closed"
        return Rejection(ProtocolError(code, message, True, details or {}))


class ClientConnection:
    """A client's end of a connection. Of no more use after a `RemoteProtocolError`."""

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.version: int | None = None
        self._max_sent_bytes = max_frame_bytes  # until the welcome tells the daemon's limit
        self._order = Order()
        self._frames = FrameDecoder(max_frame_bytes)
        self._n_text_bytes: dict[int, int] = {}

    @property
    def state(self) -> DaemonSide:
        """What is expected of the daemon; "closed" after a fatal error of either end."""
        return self._order.from_daemon

    @property
    def active(self) -> tuple[int, ...]:
        """The ids that are owed an answer, oldest first."""
        return tuple(self._order.phases)

    def is_active(self, request_id: int) -> bool:
        """Whether the request is owed an answer."""
        return request_id in self._order.phases

    def hello(self, client: str = "") -> bytes:
        """Return the frame that opens the connection. Requests may follow at once."""
        return self.send(Hello(MIN_VERSION, MAX_VERSION, client))

    def send(self, message: ClientMessage) -> bytes:
        """Return the message as a frame. Field bounds are the daemon's to check.

        Raises:
            MessageTooLarge: it does not fit into a frame.
            LocalProtocolError: it cannot be encoded, is not legal now, or has a bad or used id.
        """
        frame = encode_frame(message, self._max_sent_bytes)
        if not isinstance(message, Hello | ProtocolError):
            request_id = message.request_id
            if type(request_id) is not int or not 0 <= request_id <= MAX_REQUEST_ID:
                raise LocalProtocolError(f"request id {request_id!r} is not in [0, 2**63)")
        try:
            self._order.client_sends(message)
        except OutOfOrder as err:
            raise LocalProtocolError(str(err)) from err
        return frame

    def receive(self, data: bytes) -> list[DaemonMessage]:
        """Return what the daemon has said, in order, without types that are newer than ours.

        Raises:
            RemoteProtocolError: something is malformed, out of order, or has lost text; its
                `messages` are what came before that.
        """
        messages: list[DaemonMessage] = []
        oversized: FrameTooLarge | None = None
        try:
            payloads = [] if self.state == "closed" else self._frames.feed(data)
        except FrameTooLarge as err:
            payloads, oversized = err.payloads, err
        try:
            for payload in payloads:
                message = self._read(payload)
                if message is not None:
                    messages.append(message)
                if self.state == "closed":
                    return messages
            if oversized is not None:
                raise oversized
        except RemoteProtocolError as err:
            err.messages = messages
            raise
        return messages

    def receive_eof(self) -> None:
        """Note that the daemon sends no more.

        Raises:
            IncompleteStream: it owes a welcome, the rest of a frame, or answers.
        """
        if self.state == "awaiting_welcome":
            raise IncompleteStream("the daemon closed before its welcome", self.active)
        if self.active:
            requests = ", ".join(map(str, self.active))
            raise IncompleteStream(
                f"the daemon closed before the answer was complete (request {requests})",
                self.active,
            )
        if self._frames.is_mid_frame and self.state != "closed":
            raise IncompleteStream("the daemon closed amid a frame")

    def _read(self, payload: bytes) -> DaemonMessage | None:
        try:
            message = _decode_daemon_message(payload)
        except (DecodeError, RecursionError) as err:
            if is_from_newer_peer(payload):
                return None
            raise RemoteProtocolError(f"not a message of the daemon: {err}") from err
        try:
            self._order.daemon_sends(message)
        except OutOfOrder as err:
            raise RemoteProtocolError(str(err)) from err
        self._check(message)
        return message

    def _check(self, message: DaemonMessage) -> None:
        """Count text, so that a `Finished` proves that all of it came; agree on the version."""
        match message:
            case Delta(request_id=request_id, text=text):
                n_bytes = len(text) if text.isascii() else len(text.encode())
                self._n_text_bytes[request_id] += n_bytes
            case Accepted(request_id=request_id):
                self._n_text_bytes[request_id] = 0
            case Finished(request_id=request_id, n_text_bytes=n_sent):
                n_seen = self._n_text_bytes.pop(request_id)
                if n_seen != n_sent:
                    raise RemoteProtocolError(
                        f"request {request_id} has {n_sent} bytes of text, {n_seen} came"
                    )
            case Failed(request_id=request_id) if request_id not in self._order.phases:
                self._n_text_bytes.pop(request_id, None)
            case Welcome(version=version, max_frame_bytes=max_frame_bytes):
                if not MIN_VERSION <= version <= MAX_VERSION:
                    raise RemoteProtocolError(f"the daemon chose version {version}")
                self.version, self._max_sent_bytes = version, max_frame_bytes
            case _:
                pass
