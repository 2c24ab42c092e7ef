"""What waits for one connection's writer.

`put` never waits. Deltas of a request that wait together become one. A request whose text
exceeds the limit is reported full, and reported again when the writer has come by since.
"""

from collections.abc import Callable

import anyio

from runnerd_protocol.messages import DaemonMessage, Delta, ProtocolError, Welcome

CONNECTION = -1  # the mailbox of messages that belong to no request


class Outbox:
    """Mailboxes of one connection, by request, in the order in which they got mail."""

    def __init__(self, limit_bytes: int, on_full: Callable[[int, bool], None]) -> None:
        self._limit_bytes = limit_bytes
        self._on_full = on_full
        self._mail: dict[int, list[DaemonMessage]] = {}
        self._n_bytes: dict[int, int] = {}
        self._full: set[int] = set()
        self._has_mail = anyio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._mail

    def put(self, message: DaemonMessage) -> None:
        """Leave a message for the writer."""
        match message:
            case Delta():
                self._put_delta(message)
            case Welcome() | ProtocolError():
                self._mail.setdefault(CONNECTION, []).append(message)
            case _:
                self._mail.setdefault(message.request_id, []).append(message)
        self._has_mail.set()

    def _put_delta(self, delta: Delta) -> None:
        request_id = delta.request_id
        box = self._mail.get(request_id)
        if box is None:
            self._mail[request_id] = [delta]
            n_bytes = len(delta.text)
        else:
            last = box[-1]
            if isinstance(last, Delta):
                box[-1] = Delta(
                    request_id,
                    last.text + delta.text,
                    last.n_tokens + delta.n_tokens,
                    last.tokens + delta.tokens,
                )
            else:
                box.append(delta)
            n_bytes = self._n_bytes.get(request_id, 0) + len(delta.text)
        self._n_bytes[request_id] = n_bytes
        if n_bytes > self._limit_bytes and request_id not in self._full:
            self._full.add(request_id)
            self._on_full(request_id, True)

    async def take(self) -> list[DaemonMessage]:
        """Wait for mail; return all of it, and report what was full as full no more."""
        await self._has_mail.wait()
        self._has_mail = anyio.Event()
        messages = [message for box in self._mail.values() for message in box]
        self._mail.clear()
        self._n_bytes.clear()
        full, self._full = self._full, set()
        for request_id in full:
            self._on_full(request_id, False)
        return messages

    def ring(self) -> None:
        """Wake the writer without mail: there is nothing more to come."""
        self._has_mail.set()
