"""The prefix cache: what of a prompt is cached where, and which slot it should go to.

A prompt may start from any slot with its key, also from one that is in use. Where a model
cannot simply go back, `start_at` decides how far a slot's beginning is of use.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from runnerd.core.batch import COPY_ROWS, Limits
from runnerd.core.checkpoints import Checkpoint, Checkpoints
from runnerd.core.prompt import Layout, common_prefix
from runnerd.core.slots import CacheKey, Slot, SlotPool

MIN_WAIT = 16  # inputs; not worth waiting for, a step of one's own evaluates as many


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a slot that a prompt starts from, by a checkpoint if need be.

    `from_nothing`: by the checkpoint alone, whatever the slot holds.
    """

    slot: Slot
    n_inputs: int
    checkpoint: Checkpoint | None = None
    from_nothing: bool = False


def start_at(
    limits: Limits,
    slot: Slot,
    layout: Layout,
    n_common: int,
    checkpoints: Sequence[Checkpoint],
) -> Start:
    """Return how a slot can be used whose first inputs are those of a prompt.

    With a window the sliding layers must still hold what the next input looks back on. A state
    that cannot go back must be where it is wanted. Otherwise the slot goes back to a checkpoint
    of the prompt (`checkpoints`, ascending), or to nothing.

    Source: llama.cpp keeps quiet about missing keys; a cell at the edge of the window less.
    """
    is_there = limits.can_rewind or n_common == slot.n_past
    if limits.window:
        pos = layout.position(layout.cut_start(n_common))  # at least there the next row lies
        is_there &= slot.oldest <= max(0, pos - limits.window)
    if is_there:
        return Start(slot, n_common)
    for checkpoint in reversed(checkpoints):
        if checkpoint.n_inputs <= n_common:
            return Start(slot, checkpoint.n_inputs, checkpoint)
    return Start(slot, 0)


class Search:
    """What the slots have of one prompt."""

    def __init__(
        self,
        limits: Limits,
        pool: SlotPool,
        checkpoints: Checkpoints,
        key: CacheKey,
        inputs: list[int],
        layout: Layout,
    ) -> None:
        self._limits = limits
        self._pool = pool
        self._key = key
        self._inputs = inputs
        self._layout = layout
        self._n_most = len(inputs) - 1  # one input is always evaluated, to sample from
        self.checkpoints = checkpoints.matching(key, inputs) if limits.needs_checkpoints else []

    def start(self, slot: Slot, more_than: int = -1) -> Start | None:
        """Return what of the prompt a slot has, if it is more than so many inputs."""
        n_most = min(self._n_most, slot.n_offered) if slot.key == self._key else 0
        if n_most <= more_than:
            return None
        if more_than >= 0 and slot.inputs[more_than] != self._inputs[more_than]:
            return None
        n_common = self._layout.cut_start(common_prefix(self._inputs, slot.inputs, n_most))
        start = start_at(self._limits, slot, self._layout, n_common, self.checkpoints)
        return start if start.n_inputs > more_than else None

    def best(self, more_than: int, but: Slot | None = None) -> Start | None:
        """Return the longest start of all slots but one; a free one before one in use.

        `more_than` is at least 0. Of equal starts the one wins whose slot holds less.
        """
        found: Start | None = None
        promising = self._promising(self._pool.slots, more_than)
        promising.sort(key=attrgetter("is_leased"))
        for slot in promising:
            if slot is not but:
                start = self.start(slot, more_than if found is None else found.n_inputs)
                found = start or found
        return found

    def best_in_place(self) -> Start | None:
        """Return the longest start in a free slot that keeps half of what it remembers.

        A long conversation is not cut down to a stranger's common beginning. An empty slot loses
        nothing. Of equal starts the one wins whose slot loses less.
        """
        free = self._pool.free()
        empty = self._most_beside([slot for slot in free if slot.n_past == 0])
        found = None if empty is None else Start(empty, 0)
        for slot in self._promising(free, 0):
            at_least = max((slot.n_past + 1) // 2, 0 if found is None else found.n_inputs + 1)
            found = self.start(slot, at_least - 1) or found
        return found

    def _promising(self, slots: Iterable[Slot], more_than: int) -> list[Slot]:
        """Return those that may have more than so many inputs, whoever holds less first.

        One look decides for most slots; whole prefixes are compared for the promising.
        """
        if more_than >= self._n_most:
            return []
        wanted, key = self._inputs[more_than], self._key
        promising = [
            slot
            for slot in slots
            if slot.n_past > more_than and slot.inputs[more_than] == wanted and slot.key == key
        ]
        promising.sort(key=attrgetter("n_past"))
        return promising

    def kept(self, slot: Slot, more_than: int) -> Start | None:
        """Return the longest start in a slot by a checkpoint alone, if it is more than that."""
        if self._limits.has_attention:
            return None
        for checkpoint in reversed(self.checkpoints):
            if more_than < checkpoint.n_inputs <= self._n_most:
                return Start(slot, checkpoint.n_inputs, checkpoint, from_nothing=True)
        return None

    def choose(self) -> tuple[Slot, Start]:
        """Return the slot to take, which is free, and where to start: in it, or in another.

        Another is copied only if that saves enough over starting in place. Where a checkpoint is
        all that it takes, any slot will do.
        """
        in_place = self.best_in_place()
        n_worth = 1 if self._limits.is_unified else COPY_ROWS
        best = self.best(in_place.n_inputs if in_place is not None else 0)
        spare = self._spare(best)
        if in_place is None:
            in_place = self.start(spare) or Start(spare, 0)
        if best is None or spare is best.slot or best.n_inputs - in_place.n_inputs < n_worth:
            best = in_place
        kept = self.kept(spare, best.n_inputs)
        if kept is not None:
            return spare, kept
        return (best.slot, best) if best is in_place else (spare, best)

    def _spare(self, best: Start | None) -> Slot:
        """Return the free slot to empty for a prompt.

        If that is the one with the best start, and the next would lose less, it is the next.
        """
        free = self._pool.free()
        first = self._least_of_use(free)
        if best is not None and first is best.slot and len(free) > 1:
            second = self._least_of_use([slot for slot in free if slot is not first])
            n_lost = first.n_past - best.n_inputs
            return second if second.n_past < n_lost else first
        return first

    def _least_of_use(self, free: list[Slot]) -> Slot:
        """Return an empty slot, or one of the half that has been unused for longest."""
        empty = [slot for slot in free if slot.n_past == 0]
        unused = sorted(free, key=attrgetter("tick"))[: (len(free) + 1) // 2]
        found = self._most_beside(empty or unused)
        assert found is not None, "no slot is free"
        return found

    def _most_beside(self, slots: list[Slot]) -> Slot | None:
        """Return the one with the most neighbours in use, of equals the first.

        Where slots are apart, only neighbours share a micro-batch: four that generate take a
        quarter less time than four with gaps between them.
        """
        if self._limits.is_unified:
            return next(iter(slots), None)
        return max(slots, key=self._pool.n_beside, default=None)
