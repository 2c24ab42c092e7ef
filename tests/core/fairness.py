"""How long prefilling sequences wait for each other.

Exactly: between two steps that serve a prefilling sequence, no other one is served twice,
unless with rows that were left over because a one-pass group of the first did not fit into
them; and nobody waits longer than two steps for each slot. A sequence that is paused,
suspended or started anew counts from there, and so do all after a step that found no room.
"""

from collections import Counter
from collections.abc import Iterable

from runnerd.core.sequence import Sequence


class Fairness:
    """Counts whom each waiting sequence has seen served."""

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._served_since: dict[int, Counter[int]] = {}
        self._n_waited: Counter[int] = Counter()

    def restart(self, seq_ids: Iterable[int]) -> None:
        """Count anew for these."""
        for seq_id in seq_ids:
            self._served_since.pop(seq_id, None)
            self._n_waited.pop(seq_id, None)

    def step(self, ring: list[Sequence], in_step: set[int]) -> None:
        """Count a step: these were prefilling, and those had rows."""
        ids = [sequence.seq_id for sequence in ring]
        self.restart([seq_id for seq_id in self._served_since if seq_id not in ids])
        served = in_step & set(ids)
        self.restart(served)
        for sequence in ring:
            if sequence.seq_id in served:
                continue
            counts = self._served_since.setdefault(sequence.seq_id, Counter())
            counts.update(served)
            self._n_waited[sequence.seq_id] += 1
            # The head's group may need a step alone, and before that one that is not.
            assert self._n_waited[sequence.seq_id] <= 2 * self._n_slots, "waits too long"
            group = sequence.layout.group_at(sequence.n_past)
            if group is None or not group.one_pass:
                assert all(n < 2 for n in counts.values()), "another was served twice"
