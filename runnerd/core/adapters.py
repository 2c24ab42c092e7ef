"""Whose turn it is among sets of adapters: a step runs with one of them.

A change of adapters costs time, so a set is kept for some steps while others wait; then it
goes to the end of the line of sets. With n sets, each is served in every `HOLD_STEPS * n`.
"""

from collections.abc import Iterable

from runnerd.core.batch import Adapters

HOLD_STEPS = 4  # long enough that a change is rare, short enough that no stream stutters


class AdapterTurns:
    """The set in use, and those that wait for it to give way, longest first."""

    def __init__(self) -> None:
        self._current: Adapters = ()
        self._line: list[Adapters] = []
        self._n_held = 0

    def choose(self, wanted: Iterable[Adapters]) -> Adapters:
        """Return the set for the next step, of those that somebody wants."""
        present = dict.fromkeys(wanted)
        has_work = self._current in present
        self._line = [adapters for adapters in self._line if adapters in present]
        known = (self._current, *self._line)
        self._line += [adapters for adapters in present if adapters not in known]
        if self._line and not (has_work and self._n_held < HOLD_STEPS):
            if has_work:
                self._line.append(self._current)
            self._current = self._line.pop(0)
            self._n_held = 0
        return self._current

    def count_step(self) -> None:
        """Note that the set chosen last has had a step."""
        self._n_held = self._n_held + 1 if self._line else 0
