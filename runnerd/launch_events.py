"""What happens to a launched runner, for whoever listens."""

from collections import deque
from dataclasses import dataclass
from typing import Self
from weakref import WeakSet

import anyio

from runnerd.death import Death
from runnerd_protocol.messages import DaemonState

KEPT_EVENTS = 256  # of a listener that does not read; a load alone tells up to 20 a second


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The daemon says that it is in another state."""

    state: DaemonState


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The load is in this phase, and so far in it: each phase begins anew at 0."""

    phase: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nothing has moved for so long; `what` is a phase of the load, "work", or "start"."""

    what: str
    still_s: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """It moves again; it had not for so long."""

    still_s: float


@dataclass(frozen=True, slots=True)
class Died:
    """The child has ended; `restarts_in_s` is None if it is not started again."""

    death: Death
    restarts_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Restarted:
    """Another child is there in its place, and loads; `n_restarts` counts from the launch."""

    pid: int
    n_restarts: int


Event = StateChanged | LoadProgress | Stalled | Recovered | Died | Restarted


class EventStream:
    """The events from now on, in order. It ends with the runner.

    Of those that are not read only the newest are kept; `n_dropped` counts the others.
    """

    def __init__(self) -> None:
        self.n_dropped = 0
        self._events: deque[Event] = deque()
        self._news = anyio.Event()
        self._has_ended = False

    def put(self, event: Event) -> None:
        """Add an event; the oldest goes where there are too many."""
        if len(self._events) == KEPT_EVENTS:
            self._events.popleft()
            self.n_dropped += 1
        self._events.append(event)
        self._news.set()

    def end(self) -> None:
        """Say that there will be no more."""
        self._has_ended = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event, when there is one."""
        while not self._events:
            if self._has_ended:
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        return self._events.popleft()


class EventFeed:
    """Hands each event to every stream that somebody still holds."""

    def __init__(self) -> None:
        self._streams: WeakSet[EventStream] = WeakSet()
        self._has_ended = False

    def open(self) -> EventStream:
        """Return a stream of the events from now on; for one reader at a time."""
        stream = EventStream()
        self._streams.add(stream)
        if self._has_ended:
            stream.end()
        return stream

    def put(self, event: Event) -> None:
        """Tell all."""
        for stream in list(self._streams):
            stream.put(event)

    def end(self) -> None:
        """End all streams, also those that are opened later."""
        self._has_ended = True
        for stream in list(self._streams):
            stream.end()
