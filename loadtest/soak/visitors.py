"""Clients of a soak: each asks, reads to the end or leaves, and every request is accounted for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import assert_never

import anyio

from loadtest.soak.asks import Ask
from loadtest.soak.wire import Wire, wire_to
from runnerd_protocol.errors import RemoteProtocolError
from runnerd_protocol.messages import DaemonMessage, Delta, Failed, Finished

SILENCE_S = 120.0  # without a word, on a machine however busy: the request has no end
MOST_ASKED = 20  # over one connection


@dataclass(slots=True)
class Tally:
    """What became of the requests of a soak. `wrong` says of each kind what was not right."""

    n_asked: int = 0
    n_finished: int = 0
    n_failed: int = 0
    n_answered: int = 0
    n_left: int = 0
    n_cancelled: int = 0
    n_connections: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    @property
    def n_endless(self) -> int:
        """Requests that have no end, though their connection was not left."""
        n_ended = self.n_finished + self.n_failed + self.n_answered
        return self.n_asked - n_ended - self.n_left

    @property
    def n_wrong(self) -> int:
        """Answers, or ends of connections, that were not to be expected."""
        return sum(self.wrong.values())

    def note_end(self, ask: Ask, last: DaemonMessage, text: str) -> None:
        """Count the end of a request, and hold it against what was asked."""
        match last:
            case Failed(code=code):
                self.n_failed += 1
                is_cancelled = ask.leave == "cancel" and code == "cancelled"
                if code != ask.code and not is_cancelled:
                    self.wrong[f"{ask.kind}: {code}: {last.message}"] += 1
                return
            case Finished(reason=reason):
                self.n_finished += 1
                is_whole = reason == "stop"
            case _:
                self.n_answered += 1
                is_whole = False
        if ask.code:
            self.wrong[f"{ask.kind}: was not refused"] += 1
        if ask.literal and not ask.literal.startswith(text):
            self.wrong[f"{ask.kind}: said what its grammar forbids"] += 1
        elif ask.literal and is_whole and text != ask.literal:
            self.wrong[f"{ask.kind}: stopped amid what it had to say"] += 1


class Visitor:
    """A client that takes one request after the other, over connections of some of them each."""

    def __init__(self, path: Path, seed: int, asks: Iterator[Ask], tally: Tally) -> None:
        self._path = path
        self._rng = Random(seed)
        self._asks = asks
        self._tally = tally

    async def run(self) -> None:
        """Ask until there is nothing left to ask."""
        ask = next(self._asks, None)
        while ask is not None:
            n_left = self._rng.randint(1, MOST_ASKED)
            async with wire_to(self._path) as wire:
                self._tally.n_connections += 1
                await wire.greet()
                while ask is not None and n_left > 0:
                    n_left = n_left - 1 if await self._serve(wire, ask) else 0
                    ask = next(self._asks, None)

    async def _serve(self, wire: Wire, ask: Ask) -> bool:
        """Ask, and read or leave; return whether the connection can be used on."""
        self._tally.n_asked += 1
        try:
            return await self._ask(wire, ask)
        except TimeoutError:
            self._tally.wrong[f"{ask.kind}: no word for {SILENCE_S:g} s"] += 1
        except (RemoteProtocolError, anyio.BrokenResourceError) as err:
            self._tally.wrong[f"{ask.kind}: {err or 'the connection was reset'}"] += 1
        return False

    async def _ask(self, wire: Wire, ask: Ask) -> bool:
        request_id = await wire.ask(ask.request, is_half=ask.leave == "cut")
        reading = _Reading(wire, ask, request_id)
        if ask.delay_s:
            with anyio.move_on_after(ask.delay_s):
                await reading.run()
        elif ask.leave != "cut":
            await reading.run(ask.n_messages if ask.leave else None)
        if reading.last is None:
            match ask.leave:
                case "cancel":
                    self._tally.n_cancelled += 1
                    await wire.cancel(request_id)
                    await reading.run()
                case "close" | "cut":
                    self._tally.n_left += 1
                    return False
                case "reset":
                    with anyio.fail_after(SILENCE_S):
                        await wire.until_unread()
                    self._tally.n_left += 1
                    return False
                case None:
                    raise AssertionError("who does not leave reads to the end")
                case _:
                    assert_never(ask.leave)
        assert reading.last is not None
        self._tally.note_end(ask, reading.last, reading.text)
        return True


class _Reading:
    """What was read of a request's answer; `last` is there when it has ended."""

    def __init__(self, wire: Wire, ask: Ask, request_id: int) -> None:
        self.text = ""
        self.last: DaemonMessage | None = None
        self._wire = wire
        self._is_slow = ask.is_slow
        self._request_id = request_id

    async def run(self, n_most: int | None = None) -> None:
        """Read to the end, or so many messages."""
        n_read = 0
        while self.last is None and (n_most is None or n_read < n_most):
            with anyio.fail_after(SILENCE_S):
                message = await self._wire.next(is_slow=self._is_slow)
            n_read += 1
            if isinstance(message, Delta) and message.index == 0:
                self.text += message.text
            if self._wire.has_ended(self._request_id):
                self.last = message
