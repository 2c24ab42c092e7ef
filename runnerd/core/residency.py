"""Who holds which slot and which cells, and the cache edits that make it so.

Edits collect in `edits` until the next step carries them to the engine; slots and ledger are
already as they will be then. When cells run out, idle slots forget first, then the youngest
sequence is suspended: it keeps its slot and its inputs, and evaluates them again later, before
any newcomer. The oldest that runs is never suspended, so somebody always gets on.
"""

from runnerd.core.batch import Edit, KVRemove, KVShift, Limits, SamplerClose, SamplerOpen
from runnerd.core.kv import KVLedger
from runnerd.core.prompt import shift_stop
from runnerd.core.sequence import Sequence
from runnerd.core.slots import Lease, Slot, SlotPool


class Residency:
    """The running sequences, in order of arrival, and what they hold."""

    def __init__(self, limits: Limits) -> None:
        self.running: list[Sequence] = []
        self.pool = SlotPool(limits.n_slots)
        self.ledger = KVLedger(limits.n_slots, limits.n_cells)
        self.edits: list[Edit] = []
        self._limits = limits
        self._n_released = 0

    def active(self) -> list[Sequence]:
        """Return the sequences that may take part in a step."""
        return [s for s in self.running if not s.paused and s.suspended_at is None]

    @property
    def is_short(self) -> bool:
        """Whether a sequence that could run is suspended for want of cells."""
        return any(s.suspended_at is not None and not s.paused for s in self.running)

    # --- slots -----------------------------------------------------------------------------

    def admit(self, sequence: Sequence, lease: Lease) -> None:
        """Give a sequence the slot that suits it best; the lease goes back if that fails."""
        try:
            slot, n_cached = self.pool.best_for(sequence.inputs)
            n_cached = sequence.layout.cut_start(n_cached)
            lease.take(slot)
            self.forget(slot, n_cached, sequence.layout.position(n_cached))
            self.make_room(len(sequence.inputs) - n_cached + self._n_promised())
            history = sequence.penalty_history()
        except BaseException:
            lease.give_back()
            raise
        slot.inputs = sequence.inputs
        sequence.lease = lease
        sequence.n_cached = n_cached
        self.running.append(sequence)
        if sequence.wants_token:
            self.edits.append(SamplerOpen(sequence.seq_id, sequence.options.sampling, history))

    def release(self, sequence: Sequence, lease: Lease) -> None:
        """Take a sequence out; its slot keeps what it has cached."""
        self.running.remove(sequence)
        if sequence.n_shifts and self._limits.can_shift:
            # What was moved has seen what was dropped: no new prompt may start from it.
            n_keep = sequence.n_keep
            self.forget(lease.slot, n_keep, sequence.layout.position(n_keep))
        lease.give_back()
        self._n_released += 1
        if sequence.wants_token:
            self.edits.append(SamplerClose(sequence.seq_id))

    # --- cells -----------------------------------------------------------------------------

    def store(self, sequence: Sequence, n_inputs: int) -> None:
        """Count inputs that a step has put into the cache."""
        slot = self._slot(sequence)
        self.ledger.take(slot.slot_id, n_inputs)
        slot.n_past += n_inputs

    def forget(self, slot: Slot, n_past: int, pos: int) -> None:
        """Drop a slot's cells from the input `n_past` on, which lies at position `pos`."""
        if n_past < slot.n_past:
            self.ledger.give_back(slot.slot_id, slot.n_past - n_past)
            slot.n_past = n_past
            self.edits.append(KVRemove(slot.slot_id, pos))

    def forget_idle(self) -> bool:
        """Drop all that idle slots remember; return whether there was any."""
        idle = self.pool.idle()
        for slot in idle:
            self.forget(slot, 0, 0)
        return bool(idle)

    def n_obtainable(self) -> int:
        """Cells free or held by idle slots, less what running sequences still need."""
        n_idle = sum(slot.n_past for slot in self.pool.idle())
        return self.ledger.n_free + n_idle - self._n_promised()

    def make_room(self, n_cells: int) -> bool:
        """Let idle slots forget, least recently used first, until so many cells are free."""
        if self.ledger.n_free < n_cells:
            for slot in self.pool.idle():
                self.forget(slot, 0, 0)
                if self.ledger.n_free >= n_cells:
                    break
        return self.ledger.n_free >= n_cells

    def shift(self, sequence: Sequence) -> None:
        """Drop the oldest half after `n_keep`; what an engine cannot move is evaluated again."""
        slot, layout, n_keep = self._slot(sequence), sequence.layout, sequence.n_keep
        stop = shift_stop(layout, n_keep, slot.n_past, self._limits.n_ctx)
        p0, p1 = layout.position(n_keep), layout.position(stop)
        if self._limits.can_shift:
            self.ledger.give_back(slot.slot_id, stop - n_keep)
            slot.n_past -= stop - n_keep
            self.edits.append(KVRemove(slot.slot_id, p0, p1))
            self.edits.append(KVShift(slot.slot_id, p1, None, p0 - p1))
        else:
            self.forget(slot, n_keep, p0)
        del sequence.inputs[n_keep:stop]
        sequence.layout = layout.without(n_keep, stop)
        sequence.n_shifts += 1
        sequence.n_shifted += stop - n_keep

    def suspend_youngest(self) -> bool:
        """Take the cells of the youngest sequence, a paused one before others.

        Returns:
            Whether there was one to suspend: the last that holds or wants cells keeps them.
        """
        resident = [s for s in self.running if s.suspended_at is None]
        if len(resident) < 2:
            return False
        self._suspend(max(reversed(resident), key=lambda s: s.paused))
        return True

    def resume_suspended(self) -> bool:
        """Take up suspended sequences, oldest first, once another has ended or none can run.

        Returns:
            Whether all are taken up that are not paused; newcomers wait until then.
        """
        for sequence in self.running:
            if sequence.suspended_at is None or sequence.paused:
                continue
            if sequence.suspended_at == self._n_released and self.active():
                return False
            if not self.can_hold(len(sequence.inputs)):
                return False
            sequence.suspended_at = None
            self.make_room(self._n_promised())
        return True

    def can_hold(self, n_cells: int) -> bool:
        """Whether so many cells are obtainable; if nobody runs, the paused give up theirs."""
        while self.n_obtainable() < n_cells:
            paused = [s for s in self.running if s.suspended_at is None]
            if not paused or self.active():
                return False
            self._suspend(paused[-1])
        return True

    def _suspend(self, sequence: Sequence) -> None:
        sequence.suspended_at = self._n_released
        self.forget(self._slot(sequence), 0, 0)

    def _n_promised(self) -> int:
        """Cells that running sequences need for the inputs they have."""
        return sum(s.n_pending for s in self.running if s.suspended_at is None)

    def _slot(self, sequence: Sequence) -> Slot:
        return self.pool.slots[sequence.slot_id]

    def check(self) -> None:
        """Assert that slots, leases, cells and sequences agree."""
        self.pool.check()
        self.ledger.check()
        leased = sorted(s.slot_id for s in self.running)
        assert leased == [slot.slot_id for slot in self.pool.slots if slot.is_leased]
        for slot in self.pool.slots:
            assert self.ledger.held(slot.slot_id) == slot.n_past, f"slot {slot.slot_id}"
        for sequence in self.running:
            assert sequence.suspended_at is None or sequence.n_past == 0
            assert 0 <= sequence.n_past <= min(len(sequence.inputs), self._limits.n_ctx)
            inside = sequence.layout.group_at(sequence.n_past)
            assert inside is None or not inside.one_pass or inside.start == sequence.n_past
