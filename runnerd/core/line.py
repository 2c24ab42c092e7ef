"""The waiting line: first come, first served within a class, and shares among the classes.

Each class has a place on a scale that all have in common. Whoever is first in the class that
stands lowest is served next, and the class moves up by its stride: the lower the priority, the
longer. So while all classes wait, they are served 16 : 4 : 1, and nobody starves.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge

from runnerd.core.sequence import Priority, Sequence

STRIDES: dict[Priority, int] = {"high": 1, "normal": 4, "low": 16}  # first: served first of equals


@dataclass(slots=True, eq=False)
class _Class:
    """Those who wait with one priority, and the numbers that they drew on arrival."""

    stride: int
    rank: int
    place: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    tickets: list[int] = field(default_factory=list)

    def turns(self) -> Iterator[tuple[int, int, Sequence]]:
        """Yield the sequences in order, with the places where they are served."""
        for number, sequence in enumerate(self.sequences):
            yield self.place + number * self.stride, self.rank, sequence

    def n_before(self, place: int, rank: int) -> int:
        """Count who is served before one of another class, at this place and of this rank."""
        # At the same place the class of the lower rank is served first.
        distance = place - self.place + (self.rank < rank)
        return min(max(0, -(-distance // self.stride)), len(self.sequences))


class Line:
    """Sequences that wait for a slot. Iterates in the order of service, if nobody comes."""

    def __init__(self) -> None:
        self._classes = {
            priority: _Class(stride, rank)
            for rank, (priority, stride) in enumerate(STRIDES.items())
        }
        self._tickets: dict[int, int] = {}
        self._n_drawn = 0
        self._place = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Sequence]:
        turns = merge(*(waiting.turns() for waiting in self._classes.values()))
        return (sequence for _, _, sequence in turns)

    @property
    def first(self) -> Sequence:
        """The sequence to be served next; there is one."""
        return self._next_class().sequences[0]

    def append(self, sequence: Sequence) -> None:
        """Let a sequence wait, behind all of its class."""
        waiting = self._class_of(sequence)
        if not waiting.sequences:
            # An empty class saves nothing up; its first has as far to go as its later ones.
            waiting.place = max(waiting.place, self._place + waiting.stride)
        waiting.sequences.append(sequence)
        waiting.tickets.append(self._n_drawn)
        self._tickets[sequence.seq_id] = self._n_drawn
        self._n_drawn += 1

    def serve(self) -> Sequence:
        """Take out the first."""
        served = self._next_class()
        self._place = served.place
        served.place += served.stride
        return self._take(served, 0)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is not served."""
        self._take(self._class_of(sequence), self._index(sequence))

    def n_ahead(self, sequence: Sequence) -> int:
        """Return how many are served before a sequence, if nobody comes."""
        own, n_ahead = self._class_of(sequence), self._index(sequence)
        place = own.place + n_ahead * own.stride
        others = (c for c in self._classes.values() if c is not own)
        return n_ahead + sum(other.n_before(place, own.rank) for other in others)

    def _next_class(self) -> _Class:
        filled = (c for c in self._classes.values() if c.sequences)
        return min(filled, key=lambda c: c.place)

    def _class_of(self, sequence: Sequence) -> _Class:
        return self._classes[sequence.options.priority]

    def _index(self, sequence: Sequence) -> int:
        return bisect_left(self._class_of(sequence).tickets, self._tickets[sequence.seq_id])

    def _take(self, waiting: _Class, index: int) -> Sequence:
        sequence = waiting.sequences.pop(index)
        del waiting.tickets[index]
        del self._tickets[sequence.seq_id]
        return sequence
