"""What each slot works for, as clients and parents are told it.

With many slots that is the largest part of a status. It is made once for all who ask before
anything has moved, and at the latest anew after a moment, since ages go on.
"""

from collections.abc import Callable

from runnerd.core.batcher import Batcher
from runnerd.core.sequence import Sequence
from runnerd.core.slots import Slot
from runnerd_protocol.messages import SlotState, SlotStatus

MOMENT_S = 0.01  # ages are told to within this


class SlotReport:
    """Tells of the slots of a batcher. `request_id_of` knows a sequence's number at its client."""

    def __init__(self, batcher: Batcher, request_id_of: Callable[[int], int]) -> None:
        self._batcher = batcher
        self._request_id_of = request_id_of
        self._made: list[SlotStatus] | None = None
        self._made_at = 0.0

    def outdate(self) -> None:
        """Note that something has moved."""
        self._made = None

    def slots(self, now: float) -> list[SlotStatus]:
        """Return a report on every slot, in their order; nobody changes it."""
        if self._made is None or now - self._made_at >= MOMENT_S:
            running = {each.slot_id: each for each in self._batcher.residency.running}
            slots = self._batcher.residency.pool.slots
            self._made = [self._report(slot, running.get(slot.slot_id), now) for slot in slots]
            self._made_at = now
        return self._made

    def _report(self, slot: Slot, sequence: Sequence | None, now: float) -> SlotStatus:
        if sequence is None:
            return SlotStatus(slot.slot_id, "idle", n_cached=slot.n_past)
        n_prompt, n_cached = sequence.n_prompt - sequence.n_truncated, sequence.n_cached
        # Of what generates all has been evaluated, wherever a shift has moved it since.
        n_there = n_prompt if sequence.n_generated else min(slot.n_past, n_prompt)
        return SlotStatus(
            slot.slot_id,
            self._state(sequence),
            self._request_id_of(sequence.seq_id),
            n_prompt,
            n_cached,
            max(0, n_there - n_cached),
            sequence.n_generated,
            round(sequence.timings.queue_s(now), 3),
            round(sequence.timings.age_s(now), 3),
        )

    def _state(self, sequence: Sequence) -> SlotState:
        """Return what a sequence does; one that has lost its cells is left out of steps, too."""
        if sequence.paused or sequence.suspended_at is not None:
            return "paused"
        if self._batcher.awaits_media(sequence):
            return "awaiting_media"
        return "generating" if sequence.n_generated else "prompt"
