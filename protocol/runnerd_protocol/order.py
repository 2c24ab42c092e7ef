"""The legal order of messages, as tables, and a connection's place in it.

Both ends keep an `Order` and tell it what passes either way. There are two levels: each
direction of the connection has a state, and each active request has a phase.
"""

from typing import Literal

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
    Message,
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

ClientSide = Literal["awaiting_hello", "open", "closed"]
DaemonSide = Literal["awaiting_hello", "awaiting_welcome", "open", "closed"]
Phase = Literal[
    "asked",
    "generating",
    "embedding",
    "tokenizing",
    "detokenizing",
    "getting_status",
    "subscribed",
    "getting_model",
    "planning",
    "refused",
    "ended",
]
Event = type[Message] | Literal["last_status", "last_embeddings"]

FIRST_PHASE: dict[type[Message], Phase] = {
    Generate: "asked",
    Embed: "embedding",
    Tokenize: "tokenizing",
    Detokenize: "detokenizing",
    GetStatus: "getting_status",
    Subscribe: "subscribed",
    GetModel: "getting_model",
    Plan: "planning",
}

# What a client may send; nobody has to wait for the welcome before asking.
FROM_CLIENT: dict[ClientSide, frozenset[type[Message]]] = {
    "awaiting_hello": frozenset({Hello, ProtocolError}),
    "open": frozenset({*FIRST_PHASE, Media, Cancel, ProtocolError}),
    "closed": frozenset(),
}

# What the daemon may send, as far as the connection is concerned; then the phase decides.
FROM_DAEMON: dict[DaemonSide, frozenset[type[Message]]] = {
    "awaiting_hello": frozenset({ProtocolError}),
    "awaiting_welcome": frozenset({Welcome, ProtocolError}),
    "open": frozenset(
        {
            Accepted,
            MediaWanted,
            PromptProgress,
            Delta,
            Finished,
            Failed,
            Embeddings,
            Tokens,
            Text,
            Status,
            Model,
            MemoryReport,
            ProtocolError,
        }
    ),
    "closed": frozenset(),
}

# What may happen to an active request, and where that leads. "refused": a broken message
# that named a free id; the id is taken until its `Failed` is sent.
PHASES: dict[Phase, dict[Event, Phase]] = {
    "asked": {Cancel: "asked", Accepted: "generating", Failed: "ended"},
    "generating": {
        Cancel: "generating",
        MediaWanted: "generating",
        Media: "generating",
        PromptProgress: "generating",
        Delta: "generating",
        Finished: "ended",
        Failed: "ended",
    },
    "embedding": {
        Cancel: "embedding",
        Embeddings: "embedding",
        "last_embeddings": "ended",
        Failed: "ended",
    },
    "tokenizing": {Cancel: "tokenizing", Tokens: "ended", Failed: "ended"},
    "detokenizing": {Cancel: "detokenizing", Text: "ended", Failed: "ended"},
    "getting_status": {Cancel: "getting_status", "last_status": "ended", Failed: "ended"},
    "subscribed": {
        Cancel: "subscribed",
        Status: "subscribed",
        "last_status": "ended",
        Failed: "ended",
    },
    "getting_model": {Cancel: "getting_model", Model: "ended", Failed: "ended"},
    "planning": {Cancel: "planning", MemoryReport: "ended", Failed: "ended"},
    "refused": {Failed: "ended"},
}


class OutOfOrder(Exception):
    """A message is not legal now."""


class DuplicateId(OutOfOrder):
    """A request has the id of an active one."""

    def __init__(self, request_id: int) -> None:
        super().__init__(f"request {request_id} is still active")
        self.request_id = request_id


class Order:
    """Where a connection stands: the state of either direction, the phase of each request."""

    def __init__(self) -> None:
        self.from_client: ClientSide = "awaiting_hello"
        self.from_daemon: DaemonSide = "awaiting_hello"
        self.phases: dict[int, Phase] = {}

    def client_sends(self, message: ClientMessage) -> bool:
        """Move on by a message to the daemon; return False for one about nothing.

        That is a cancel or a file for a request that has ended, or for another kind.

        Raises:
            DuplicateId: the message's id is active. Nothing has changed.
            OutOfOrder: the message is not legal now. Nothing has changed.
        """
        if type(message) not in FROM_CLIENT[self.from_client]:
            raise OutOfOrder(
                f"{tag_of(message)} is not legal in the client's state {self.from_client}"
            )
        match message:
            case Hello():
                self.from_client, self.from_daemon = "open", "awaiting_welcome"
            case ProtocolError(fatal=fatal):
                if fatal:
                    self.from_client = "closed"
            case Cancel(request_id=request_id) | Media(request_id=request_id):
                phase = self.phases.get(request_id)
                return phase is not None and type(message) in PHASES[phase]
            case _:
                if message.request_id in self.phases:
                    raise DuplicateId(message.request_id)
                self.phases[message.request_id] = FIRST_PHASE[type(message)]
        return True

    def daemon_sends(self, message: DaemonMessage) -> None:
        """Move on by a message to the client.

        Raises:
            OutOfOrder: the message is not legal now. Nothing has changed.
        """
        if (
            isinstance(message, Delta)  # as almost always; nothing moves on by it
            and self.from_daemon == "open"
            and self.phases.get(message.request_id) == "generating"
        ):
            return
        if type(message) not in FROM_DAEMON[self.from_daemon]:
            raise OutOfOrder(
                f"{tag_of(message)} is not legal in the daemon's state {self.from_daemon}"
            )
        if isinstance(message, Welcome):
            self.from_daemon = "open"
        elif isinstance(message, ProtocolError):
            if message.fatal:
                self.from_client = self.from_daemon = "closed"
        elif not (isinstance(message, Failed) and message.code == "duplicate_id"):
            self._reply(message.request_id, message)

    def _reply(self, request_id: int, message: DaemonMessage) -> None:
        phase = self.phases.get(request_id)
        if phase is None:
            raise OutOfOrder(f"{tag_of(message)} for request {request_id}, which is not active")
        after = PHASES[phase].get(_event_of(message))
        if after is None:
            raise OutOfOrder(f"{tag_of(message)} for request {request_id}, which is {phase}")
        if after == "ended":
            del self.phases[request_id]
        elif after != phase:
            self.phases[request_id] = after


def _event_of(message: Message) -> Event:
    match message:
        case Status(last=True):
            return "last_status"
        case Embeddings(last=True):
            return "last_embeddings"
        case _:
            return type(message)


def tag_of(message: Message) -> str:
    """Return a message's `type` on the wire."""
    return str(message.__struct_config__.tag)
