"""Slots, the ledger of their cells and the cache edits, always changed together.

Edits collect until the next step carries them to the engine; slots and ledger are already as
they will be then. So what an edit reads was put there by an earlier one or by a step.
"""

from sys import maxsize

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    Edit,
    KVCopy,
    KVRemove,
    KVShift,
    Limits,
    StepResult,
)
from runnerd.core.checkpoints import Checkpoint, Checkpoints
from runnerd.core.kv import KVLedger
from runnerd.core.prefix import Start, start_at
from runnerd.core.slots import Slot, SlotPool


class Cells:
    """What the slots hold, and how that changes."""

    def __init__(self, limits: Limits, checkpoint_budget_bytes: int) -> None:
        self.pool = SlotPool(limits.n_slots)
        self.ledger = KVLedger(limits.n_slots, limits.n_cells)
        self.checkpoints = Checkpoints(checkpoint_budget_bytes)
        self.edits: list[Edit] = []
        self.limits = limits

    # --- one slot --------------------------------------------------------------------------

    def store(self, slot: Slot, n_inputs: int, *, is_halt: bool) -> None:
        """Count inputs that a step has put into a slot; at a halt, keep a checkpoint."""
        self.ledger.take(slot.slot_id, n_inputs)
        slot.n_past += n_inputs
        if is_halt and self._is_whole(slot):
            assert slot.key is not None
            n_pos = slot.layout.position(slot.n_past)
            made = self.checkpoints.add(slot.key, slot.inputs, slot.n_past, n_pos, slot.oldest)
            if made is not None:
                self._drop(self.checkpoints.make_room())
                self.edits.append(CheckpointSave(made.checkpoint_id, slot.slot_id))

    def forget(self, slot: Slot, n_past: int) -> None:
        """Drop a slot's cells from the input `n_past` on."""
        if n_past < slot.n_past:
            self.edits.append(KVRemove(slot.slot_id, slot.layout.position(n_past)))
            self._hold(slot, n_past)

    def discard(self, slot: Slot) -> None:
        """Drop all that a slot holds, and what was kept to go back to there: it is of no use."""
        self.forget(slot, 0)
        if slot.key is None:
            return
        gone = self.checkpoints.discard(slot.key, slot.inputs)
        for edit in list(self.edits):
            if isinstance(edit, CheckpointSave) and edit.checkpoint_id in gone:
                self.edits.remove(edit)  # an engine may have emptied the slot by then
                gone.remove(edit.checkpoint_id)
        self._drop(gone)

    def lose(self, slot: Slot) -> None:
        """Record that a slot holds nothing any more."""
        self._hold(slot, 0)

    def go_back(self, slot: Slot, start: Start) -> None:
        """Bring a slot back to where something else can go on from it."""
        if start.checkpoint is None:
            self.forget(slot, start.n_inputs)
        else:
            self._restore(slot, start)

    def fill(self, slot: Slot, start: Start) -> None:
        """Let a slot hold a start instead of what it held, or nothing if there are no cells."""
        if start.slot is not slot:
            self.fork(slot, start)
            return
        self.forget(slot, 0)
        if self.make_room(start.n_inputs):
            self.ledger.take(slot.slot_id, start.n_inputs)
            slot.n_past = start.n_inputs
            self._restore(slot, start)

    def fork(self, slot: Slot, start: Start) -> None:
        """Let a slot hold the beginning of another instead of what it held.

        Where a copy takes cells and they are not to be had, it holds nothing.
        """
        source, n_inputs = start.slot, start.n_inputs
        assert source is not slot
        self.forget(slot, 0)
        n_pos = source.layout.position(n_inputs)
        if self.limits.is_unified:
            self.ledger.share(source.slot_id, slot.slot_id, n_inputs)
        elif self.make_room(n_inputs, but=source):
            self.ledger.take(slot.slot_id, n_inputs)
        else:
            return
        self.edits.append(KVCopy(source.slot_id, slot.slot_id, n_pos))
        slot.inputs, slot.n_past = source.inputs[:n_inputs], n_inputs
        slot.key, slot.layout, slot.oldest = source.key, source.layout, source.oldest
        if self.limits.is_unified:
            self._narrow(slot, n_pos)
        if start.checkpoint is not None:
            self._restore(slot, start)

    def _restore(self, slot: Slot, start: Start) -> None:
        """Let a slot go back by a checkpoint; its cells behind that are gone then."""
        checkpoint = start.checkpoint
        assert checkpoint is not None
        self.checkpoints.use(checkpoint)
        self._hold(slot, start.n_inputs)
        slot.oldest = checkpoint.oldest
        self._narrow(slot, checkpoint.n_pos)
        self.edits.append(
            CheckpointRestore(checkpoint.checkpoint_id, slot.slot_id, checkpoint.n_pos)
        )

    def _narrow(self, slot: Slot, n_pos: int) -> None:
        """Expect no more than a window before `n_pos` of the layers that have one.

        An engine may leave out the rest of a copy or a checkpoint; the next step tells.
        """
        if self.limits.window:
            slot.oldest = max(slot.oldest, n_pos - self.limits.window)

    def can_move(self, slot: Slot, n_keep: int) -> bool:
        """Whether the cells after the first `n_keep` can be moved: they are no other's too."""
        limits = self.limits
        n_shared = slot.n_past - self.ledger.n_alone(slot.slot_id)
        return limits.can_shift and not limits.needs_checkpoints and n_shared <= n_keep

    def claim(self, slot: Slot, n_keep: int) -> bool:
        """Have idle slots forget what keeps cells from being moved; return whether they can be."""
        if not self.limits.can_shift or self.limits.needs_checkpoints:
            return False
        others = [self.pool.slots[n] for n in self.ledger.sharers(slot.slot_id, n_keep)]
        if any(other.is_leased for other in others):
            return False
        for other in others:
            self.forget(other, other.layout.cut_start(n_keep))
        return self.can_move(slot, n_keep)

    def move(self, slot: Slot, n_keep: int, stop: int) -> None:
        """Drop the inputs [n_keep, stop) of a slot, and move what is behind them there."""
        p0, p1 = slot.layout.position(n_keep), slot.layout.position(stop)
        self._hold(slot, slot.n_past - (stop - n_keep))
        if slot.n_past > n_keep:
            slot.moved_at = n_keep if slot.moved_at is None else min(n_keep, slot.moved_at)
        self.edits.append(KVRemove(slot.slot_id, p0, p1))
        self.edits.append(KVShift(slot.slot_id, p1, None, p0 - p1))

    def settle(self, slot: Slot, n_seen: int | None) -> None:
        """Leave in a slot what a later prompt may begin with, of what a client has seen."""
        if slot.moved_at is not None:
            # What was moved has seen what was dropped: no new prompt may start from it.
            self.forget(slot, slot.moved_at)
        if n_seen is not None and n_seen < slot.n_past:
            start = self.reach(slot, n_seen)
            if start.n_inputs == n_seen:
                self.go_back(slot, start)

    def reach(self, slot: Slot, n_inputs: int) -> Start:
        """Return how a slot gets back to its first inputs, or to what it can of them."""
        known: list[Checkpoint] = []
        if self.limits.needs_checkpoints and slot.key is not None:
            known = self.checkpoints.matching(slot.key, slot.inputs[:n_inputs])
        return start_at(self.limits, slot, slot.layout, n_inputs, known)

    def observe(self, result: StepResult) -> None:
        """Take note of what a step has left in the cache and in checkpoints."""
        for slot, oldest in zip(self.pool.slots, result.oldest, strict=False):
            slot.oldest = oldest if oldest >= 0 else maxsize  # not even the newest is there
        self._drop(self.checkpoints.sized(result.saved))

    def _drop(self, checkpoint_ids: list[int]) -> None:
        self.edits += [CheckpointDrop(checkpoint_id) for checkpoint_id in checkpoint_ids]

    def mend(self) -> None:
        """Bring every slot that a step has left incomplete back to where it is complete."""
        for slot in self.pool.slots:
            if slot.n_past > 0 and not self._is_whole(slot):
                self.go_back(slot, self.reach(slot, slot.layout.cut_start(slot.n_past)))

    def _is_whole(self, slot: Slot) -> bool:
        """Whether evaluation can go on from all that a slot holds."""
        return start_at(self.limits, slot, slot.layout, slot.n_past, ()).n_inputs == slot.n_past

    def _hold(self, slot: Slot, n_past: int) -> None:
        self.ledger.give_back(slot.slot_id, slot.n_past - n_past)
        slot.n_past = n_past
        if slot.moved_at is not None and n_past <= slot.moved_at:
            slot.moved_at = None
        if n_past == 0:
            slot.oldest = 0

    # --- idle slots ------------------------------------------------------------------------

    def n_idle(self) -> int:
        """Cells that only idle slots hold."""
        return self.ledger.n_only_in({slot.slot_id for slot in self.pool.idle()})

    def n_in_use(self, start: Start) -> int:
        """Cells of a start that sequences hold already, so that sharing them costs none."""
        if not self.limits.is_unified:
            return 0
        idle = {slot.slot_id for slot in self.pool.idle()}
        return self.ledger.n_also_outside(idle, start.slot.slot_id, start.n_inputs)

    def make_room(self, n_cells: int, but: Slot | None = None) -> bool:
        """Let idle slots forget, least recently used first, until so many cells are free.

        First what each holds alone, no more than needed where a slot can forget its end; then
        what only idle slots share.
        """
        if self.ledger.n_free < n_cells:
            idle = [slot for slot in self.pool.idle() if slot is not but]
            for slot in idle:
                self._shrink(slot, n_cells)
                if self.ledger.n_free >= n_cells:
                    return True
            for slot in idle:
                self._shrink(slot, n_cells)
                if self.ledger.n_free < n_cells:
                    self.forget(slot, 0)
        return self.ledger.n_free >= n_cells

    def _shrink(self, slot: Slot, n_cells: int) -> None:
        """Let a slot forget cells that it holds alone, if so many are not free."""
        n_needed = n_cells - self.ledger.n_free
        n_alone = self.ledger.n_alone(slot.slot_id)
        if n_needed <= 0 or n_alone == 0:
            return
        if self.limits.needs_checkpoints:
            self.forget(slot, 0)
        else:
            n_past = slot.n_past - min(n_needed, n_alone)
            self.forget(slot, slot.layout.cut_start(n_past))

    def forget_idle(self) -> bool:
        """Drop all that idle slots remember; return whether there was any."""
        idle = self.pool.idle()
        for slot in idle:
            self.forget(slot, 0)
        return bool(idle)

    def check(self) -> None:
        """Assert that slots, ledger and checkpoints agree."""
        self.pool.check()
        self.ledger.check()
        self.checkpoints.check()
        for slot in self.pool.slots:
            assert self.ledger.held(slot.slot_id) == slot.n_past, f"slot {slot.slot_id}"
            assert slot.n_past <= self.limits.n_ctx, f"slot {slot.slot_id}: over n_ctx"
            inside = slot.layout.group_at(slot.n_past)
            if inside is None or inside.start == slot.n_past:
                assert self._is_whole(slot), f"slot {slot.slot_id}: nothing can go on from it"
            else:
                assert not inside.one_pass, f"slot {slot.slot_id}: half a group"
