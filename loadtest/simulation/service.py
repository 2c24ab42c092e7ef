"""Who got how much of what was served while it was there, kept up step by step.

The same measure as `loadtest.comparison.fairness.shares`, in constant time by token: whatever is
served is due, in equal parts, to all that are present. A running sum says what has been due to
somebody who was there from the beginning; what was due to others is a difference of two of its
values.
"""

from collections.abc import Iterable, Sequence


class Service:
    """What is served to those present. Each is known by a number."""

    def __init__(self) -> None:
        self._due = 0.0
        self._entered: dict[int, float] = {}
        self._got: dict[int, int] = {}

    def enter(self, numbers: Iterable[int]) -> None:
        """Let them take part from now on."""
        for number in numbers:
            self._entered[number], self._got[number] = self._due, 0

    def serve(self, numbers: Sequence[int]) -> None:
        """Serve one unit to each of these; everybody present was due an equal part of that."""
        for number in numbers:
            self._got[number] += 1
        if self._entered:
            self._due += len(numbers) / len(self._entered)

    def leave(self, number: int) -> tuple[int, float]:
        """Let one go; return what it got, and what was due to it."""
        return self._got.pop(number), self._due - self._entered.pop(number)
