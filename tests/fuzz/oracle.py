"""What a daemon owes for the bytes that it was sent, and whether what it says is that.

Of each request, by its id: one end, and before it only what is legal in its phase. Where an id
was used again the daemon alone knows which request it means, so that then only ends count.
"""

from collections import Counter, deque
from contextlib import suppress

from msgspec import DecodeError
from msgspec.msgpack import Decoder

from runnerd_protocol.errors import FAILED_CODES, PROTOCOL_ERROR_CODES, FrameTooLarge
from runnerd_protocol.faults import find_fault
from runnerd_protocol.framing import FrameDecoder
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    ClientMessage,
    DaemonMessage,
    Delta,
    Embeddings,
    Failed,
    Finished,
    Generate,
    Hello,
    Media,
    MemoryReport,
    Model,
    Plan,
    ProtocolError,
    Status,
    Text,
    Tokens,
    Welcome,
)
from runnerd_protocol.order import FIRST_PHASE, PHASES, Event, Phase

NO_ID = -1  # of what is said about no request

_decode = Decoder(ClientMessage).decode


class Oracle:
    """Judges one connection from outside."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.is_greeted = False
        self.is_fatal = False  # the daemon must end the connection with an error
        self.is_ended = False  # the client has, by a fatal error of its own
        self.is_endless = False  # something was asked that ends by a cancel alone
        self.owed: Counter[int] = Counter()
        self.paid: Counter[int] = Counter()
        self.said: deque[str] = deque(maxlen=8)  # for whoever reads a failed assertion
        self._frames = FrameDecoder(max_frame_bytes)
        self._phases: dict[int, Phase] = {}
        self._n_text_bytes: Counter[int] = Counter()
        self._was_welcomed = False
        self._last_word: ProtocolError | None = None

    @property
    def is_open(self) -> bool:
        """Whether the daemon reads what it is sent."""
        return not (self.is_fatal or self.is_ended)

    @property
    def n_missing(self) -> int:
        """How many bytes complete the frame that has begun."""
        return self._frames.n_missing

    @property
    def is_settled(self) -> bool:
        """Whether all that is owed has come."""
        return self.owed == self.paid and self._was_welcomed == self.is_greeted

    @property
    def has_last_word(self) -> bool:
        """Whether the daemon has ended the connection with an error."""
        return self._last_word is not None

    # --- what the client sends -------------------------------------------------------------

    def sent(self, data: bytes) -> None:
        """Note what was sent."""
        if not self.is_open:
            return
        try:
            payloads = self._frames.feed(data)
        except FrameTooLarge as err:
            payloads = err.payloads
            for payload in payloads:
                self._judge(payload)
            self.is_fatal = not self.is_ended
            return
        for payload in payloads:
            self._judge(payload)

    def sent_end(self) -> None:
        """Note that nothing more is sent."""
        self.is_fatal = self.is_fatal or (self.is_open and self._frames.is_mid_frame)

    def _judge(self, payload: bytes) -> None:
        if not self.is_open:
            return
        try:
            message = _decode(payload)
        except (DecodeError, RecursionError) as err:
            if not self.is_greeted:
                self.is_fatal = True
                return
            fault = find_fault(payload, err)
            self._owe(_id_of(fault.request_id, fault.details.get("request_id")))
            return
        match message:
            case ProtocolError(fatal=fatal):
                self.is_ended = fatal
            case Hello() if not self.is_greeted:
                self.is_greeted = message.min_version <= 1 <= message.max_version
                self.is_fatal = not self.is_greeted
            case _ if not self.is_greeted:
                self.is_fatal = True
            case Hello():
                self._owe(NO_ID)
            case Cancel() | Media():
                pass
            case _:
                self._owe(message.request_id)
                if self.owed[message.request_id] == 1:
                    self._phases[message.request_id] = FIRST_PHASE[type(message)]
                self.is_endless |= isinstance(message, Generate) and message.shift

    def _owe(self, request_id: int) -> None:
        self.owed[request_id] += 1
        if self.owed[request_id] > 1:
            self._phases.pop(request_id, None)

    # --- what the daemon says ---------------------------------------------------------------

    def heard(self, message: DaemonMessage) -> None:
        """Judge what the daemon says."""
        self.said.append(repr(message)[:200])
        assert self._last_word is None, f"after the last word: {self.said}"
        match message:
            case Welcome():
                assert self.is_greeted, self.said
                assert not self._was_welcomed, self.said
                self._was_welcomed = True
            case ProtocolError(fatal=True):
                assert message.code in PROTOCOL_ERROR_CODES
                assert self.is_fatal, f"no reason for it: {self.said}"
                self._last_word = message
            case ProtocolError():
                assert message.code in PROTOCOL_ERROR_CODES
                self._pay(_id_of(message.details.get("request_id")))
            case _:
                assert self._was_welcomed
                self._follow(message.request_id, message)

    def _follow(self, request_id: int, message: DaemonMessage) -> None:
        match message:
            case Failed(code=code):
                assert code in FAILED_CODES or code == "internal", self.said
            case Accepted():
                self._n_text_bytes[request_id] = 0
            case Delta(text=text):
                self._n_text_bytes[request_id] += len(text.encode())
            case _:
                pass
        phase = self._phases.get(request_id)
        if phase is not None:
            after = PHASES[phase].get(_event_of(message))
            assert after is not None, f"not legal while {phase}: {self.said}"
            self._phases[request_id] = after
            if isinstance(message, Finished):
                assert message.n_text_bytes == self._n_text_bytes[request_id], self.said
        if is_end(message):
            self._phases.pop(request_id, None)
            self._pay(request_id)

    def _pay(self, request_id: int) -> None:
        self.paid[request_id] += 1
        assert self.paid[request_id] <= self.owed[request_id], f"owed nothing: {self.said}"


def is_end(message: DaemonMessage) -> bool:
    """Whether a message ends its request."""
    match message:
        case Status(last=last) | Embeddings(last=last):
            return last
        case _:
            return isinstance(message, Finished | Failed | Tokens | Text | Model | MemoryReport)


def takes_a_process(frames: bytes) -> bool:
    """Whether a frame asks for a plan with sizes of its own, which takes seconds."""
    try:
        payloads = FrameDecoder().feed(frames)
    except FrameTooLarge as err:
        payloads = err.payloads
    for payload in payloads:
        with suppress(DecodeError, RecursionError):
            message = _decode(payload)
            if isinstance(message, Plan) and message != Plan(message.request_id):
                return True
    return False


def _id_of(*candidates: object) -> int:
    return next((each for each in candidates if isinstance(each, int)), NO_ID)


def _event_of(message: DaemonMessage) -> Event:
    match message:
        case Status(last=True):
            return "last_status"
        case Embeddings(last=True):
            return "last_embeddings"
        case _:
            return type(message)
