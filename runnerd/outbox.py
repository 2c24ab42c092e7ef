"""What waits for one connection's writer.

`put` never waits. Deltas of a completion that wait together become one; of a subscription's
statuses, and of a completion's progress, only the newest waits. A request whose deltas exceed
the limit is reported full, and reported again when the writer has come by since. For a client
that asks on and on without reading its answers there is `wait_for_room`.
"""

from collections.abc import Callable

import anyio

from runnerd.bell import Bell
from runnerd_protocol.memory import Memory
from runnerd_protocol.messages import (
    DaemonMessage,
    Delta,
    Embeddings,
    MemoryReport,
    Model,
    PromptProgress,
    ProtocolError,
    Status,
    Text,
    Tokens,
    Welcome,
)

CONNECTION = -1  # the mailbox of messages that belong to no request
MESSAGE_BYTES = 256  # what a message takes in memory, besides long texts and lists
TOKEN_BYTES = 36  # an int and where a list points to it; on the wire it takes less
LOGPROB_BYTES = 128  # of one token; on the wire it takes less
LINE_BYTES = 200  # of a slot, a layer or a device: a map on the wire, of short texts and counts
CROWDED_BYTES = 2**20  # of answers: from here on the client has to read before it may ask


class Outbox:
    """Mailboxes of one connection, by request, in the order in which they got mail."""

    def __init__(self, limit_bytes: int, on_full: Callable[[int, bool], None]) -> None:
        self._limit_bytes = limit_bytes
        self._on_full = on_full
        self._mail: dict[int, list[DaemonMessage]] = {}
        self._n_bytes: dict[int, int] = {}
        self._full: set[int] = set()
        self._n_answer_bytes = 0
        self._has_rung = False
        self._bell = Bell()
        self._taken = anyio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._mail

    def put(self, message: DaemonMessage) -> None:
        """Leave a message for the writer."""
        match message:
            case Delta():
                self._put_delta(message)
            case PromptProgress():
                self._put_progress(message)
            case Status(last=False):
                self._put_status(message)
            case Welcome() | ProtocolError():
                self._put_answer(CONNECTION, message)
            case _:
                self._put_answer(message.request_id, message)
        self._bell.ring()

    async def wait_for_room(self) -> None:
        """Wait until the writer has taken the answers, if there is a crowd of them."""
        while self._n_answer_bytes > CROWDED_BYTES:
            await self._taken.wait()

    def _put_answer(self, box: int, message: DaemonMessage) -> None:
        self._n_answer_bytes += MESSAGE_BYTES
        match message:
            case Tokens(tokens=tokens):
                self._n_answer_bytes += TOKEN_BYTES * len(tokens)
            case Text(text=text):
                self._n_answer_bytes += utf8_bytes(text)
            case Embeddings(vectors=vectors, n_tokens=n_tokens):
                self._n_answer_bytes += sum(map(len, vectors)) + TOKEN_BYTES * len(n_tokens)
            case Status(slots=slots, memory=memory):
                self._n_answer_bytes += LINE_BYTES * (len(slots) + _n_lines(memory))
            case MemoryReport(memory=memory):
                self._n_answer_bytes += LINE_BYTES * _n_lines(memory)
            case Model(chat_template=text):
                self._n_answer_bytes += utf8_bytes(text)
            case _:
                pass
        self._mail.setdefault(box, []).append(message)

    def _put_status(self, status: Status) -> None:
        box = self._mail.get(status.request_id)
        if box and isinstance(box[-1], Status) and not box[-1].last:
            box[-1] = status
        else:
            self._put_answer(status.request_id, status)

    def _put_progress(self, progress: PromptProgress) -> None:
        box = self._mail.get(progress.request_id, [])
        at = _last_of(PromptProgress, progress.index, box)
        if at is None:
            self._put_answer(progress.request_id, progress)
        else:
            box[at] = progress

    def _put_delta(self, delta: Delta) -> None:
        request_id, n_bytes = delta.request_id, _size_of(delta)
        box = self._mail.get(request_id)
        if box is None:  # as for most tokens, of a client that reads
            self._mail[request_id] = [delta]
        else:
            n_waiting = self._n_bytes.get(request_id, 0)
            at = _last_of(Delta, delta.index, box)
            if at is None or n_waiting > self._limit_bytes:  # a frame must still hold it
                box.append(delta)
            else:
                box[at] = _merged(box[at], delta)
            n_bytes += n_waiting
        self._n_bytes[request_id] = n_bytes
        if n_bytes > self._limit_bytes and request_id not in self._full:
            self._full.add(request_id)
            self._on_full(request_id, True)

    async def take(self) -> list[DaemonMessage]:
        """Wait for mail; return all of it, and report what was full as full no more."""
        while not self._mail and not self._has_rung:
            await self._bell.wait()
        self._has_rung = False
        messages = [message for box in self._mail.values() for message in box]
        self._mail.clear()
        self._n_bytes.clear()
        if self._n_answer_bytes:
            self._n_answer_bytes = 0
            self._taken.set()
            self._taken = anyio.Event()
        if self._full:
            full, self._full = self._full, set()
            for request_id in full:
                self._on_full(request_id, False)
        return messages

    def ring(self) -> None:
        """Wake the writer without mail: there is nothing more to come."""
        self._has_rung = True
        self._bell.ring()


def utf8_bytes(text: str) -> int:
    """Return a text's length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _n_lines(memory: Memory | None) -> int:
    return 0 if memory is None else len(memory.layers) + len(memory.devices)


def _last_of(
    kind: type[Delta | PromptProgress], index: int, box: list[DaemonMessage]
) -> int | None:
    """Return where a completion's last message of a kind waits, if nothing has ended since."""
    for at in range(len(box) - 1, -1, -1):
        message = box[at]
        if not isinstance(message, Delta | PromptProgress):
            return None
        if isinstance(message, kind) and message.index == index:
            return at
    return None


def _merged(last: DaemonMessage, delta: Delta) -> Delta:
    """Return what says both."""
    assert isinstance(last, Delta)
    return Delta(
        last.request_id,
        last.text + delta.text,
        last.n_tokens + delta.n_tokens,
        last.tokens + delta.tokens,
        last.index,
        last.logprobs + delta.logprobs,
    )


def _size_of(delta: Delta) -> int:
    n_bytes = utf8_bytes(delta.text) + TOKEN_BYTES * len(delta.tokens)
    for picked in delta.logprobs:
        n_bytes += LOGPROB_BYTES * (1 + len(picked.top))
    return n_bytes
