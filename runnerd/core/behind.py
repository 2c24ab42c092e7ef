"""Who of the running sequences has more to evaluate than the token just sampled.

Where most generate, these are few. So what a newcomer is to be weighed against are they: they
want cells, share the rows for prompts, and evaluate what others may wait for. Each of those that
generate wants one cell, and is none of that.
"""

from runnerd.core.sequence import Sequence


class Behind:
    """The running sequences but for those that are known to generate, in order of arrival."""

    def __init__(self, running: list[Sequence]) -> None:
        self._running = running
        self._sequences: list[Sequence] = []
        self._is_complete = True

    @property
    def sequences(self) -> list[Sequence]:
        """Those that may be behind, as of the last `tidy`, and whoever has come since."""
        if not self._is_complete:
            self._sequences = [sequence for sequence in self._running if _is_behind(sequence)]
            self._is_complete = True
        return self._sequences

    @property
    def n_generating(self) -> int:
        """How many others run."""
        return len(self._running) - len(self.sequences)

    def add(self, sequence: Sequence) -> None:
        """Take in one that has come to run."""
        self._sequences.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Let go of one that runs no longer."""
        if sequence in self._sequences:
            self._sequences.remove(sequence)

    def look_again(self) -> None:
        """Note that some who generated may have lost what they had."""
        self._is_complete = False

    def tidy(self) -> None:
        """Let go of those that generate by now."""
        if self.sequences:
            self._sequences = [sequence for sequence in self._sequences if _is_behind(sequence)]

    def check(self) -> None:
        """Assert that nobody else is behind, and that these are in order."""
        known = self.sequences
        assert known == [s for s in self._running if s in known or _is_behind(s)]


def _is_behind(sequence: Sequence) -> bool:
    if not sequence.is_decoding or sequence.suspended_at is not None:
        return True
    return sequence.follows is not None or sequence.is_doubted
