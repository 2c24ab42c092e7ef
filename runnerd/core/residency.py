"""Who holds which slot, from which prefix, and who gives way when cells run out.

When cells run out, idle slots forget first, then the youngest sequence is suspended: it keeps
its slot and its inputs, and evaluates them again later, before any newcomer. The oldest that
runs is never suspended, so somebody always gets on.
"""

from collections.abc import Iterable
from itertools import takewhile

from runnerd.core.batch import Edit, Limits, SamplerClose, SamplerOpen, StepResult
from runnerd.core.cells import Cells
from runnerd.core.checkpoints import BUDGET_BYTES, Checkpoints
from runnerd.core.following import abandon, is_over
from runnerd.core.kv import KVLedger
from runnerd.core.prompt import shift_stop
from runnerd.core.sequence import Sequence
from runnerd.core.slots import Lease, Slot, SlotPool
from runnerd.core.starting import go_on, n_needed, n_shareable, take_slot


class Residency:
    """The running sequences, in order of arrival, and what they hold."""

    def __init__(self, limits: Limits, checkpoint_budget_bytes: int = BUDGET_BYTES) -> None:
        self.running: list[Sequence] = []
        self._limits = limits
        self._cells = Cells(limits, checkpoint_budget_bytes)
        self._n_released = 0

    @property
    def pool(self) -> SlotPool:
        """The slots."""
        return self._cells.pool

    @property
    def ledger(self) -> KVLedger:
        """Their cells."""
        return self._cells.ledger

    @property
    def checkpoints(self) -> Checkpoints:
        """What slots can go back to where forgetting their ends is not enough."""
        return self._cells.checkpoints

    @property
    def edits(self) -> list[Edit]:
        """What the next step carries to the engine."""
        return self._cells.edits

    def active(self) -> list[Sequence]:
        """Return the sequences that may take part in a step."""
        return [
            s for s in self.running if s.suspended_at is None and s.follows is None and not s.paused
        ]

    @property
    def is_short(self) -> bool:
        """Whether a sequence that could run is suspended for want of cells."""
        return any(s.suspended_at is not None and not s.paused for s in self.running)

    # --- slots -----------------------------------------------------------------------------

    def admit(self, sequence: Sequence, lease: Lease) -> None:
        """Give a sequence the slot that suits it best; the lease goes back if that fails.

        Its prefix is what is cached in that slot, a copy of what is in another, or what another
        sequence is evaluating.
        """
        try:
            take_slot(sequence, lease, self.running, self._cells)
            self.make_room(n_needed(sequence, self._cells) + self._n_promised())
            history = sequence.penalty_history()
        except BaseException:
            sequence.lease = sequence.follows = None
            sequence.n_awaited = 0
            lease.give_back()
            raise
        self.running.append(sequence)
        if sequence.wants_token:
            self.edits.append(SamplerOpen(sequence.seq_id, sequence.options.sampling, history))

    def release(self, sequence: Sequence, lease: Lease) -> None:
        """Take a sequence out; its slot keeps what it has cached and the client has seen."""
        self.running.remove(sequence)
        abandon(sequence, self.running)
        sequence.follows = None
        self._cells.settle(lease.slot, sequence.n_seen)
        lease.give_back()
        self._n_released += 1
        if sequence.wants_token:
            self.edits.append(SamplerClose(sequence.seq_id))

    def resume(self) -> bool:
        """Let sequences go on whose prefix is there now; take up suspended ones, oldest first.

        Suspended ones are taken up once another has ended or none can run.

        Returns:
            Whether all are taken up that are not paused; newcomers wait until then.
        """
        for sequence in self.running:
            if is_over(sequence):
                go_on(sequence, self._before(sequence), self._cells)
        for sequence in self.running:
            if sequence.suspended_at is None or sequence.paused:
                continue
            if sequence.suspended_at == self._n_released and self.active():
                return False
            if not self.can_take(sequence):
                return False
            sequence.suspended_at = None
            go_on(sequence, self._before(sequence), self._cells)
            self.make_room(self._n_promised())
        return True

    # --- what steps did --------------------------------------------------------------------

    def observe(self, result: StepResult) -> None:
        """Take note of what a step has left in the cache, before what it stored is counted."""
        self._cells.observe(result)

    def store(self, sequence: Sequence, n_inputs: int) -> None:
        """Count inputs that a step has put into the cache."""
        slot = self._slot(sequence)
        self._cells.store(slot, n_inputs, is_halt=slot.n_past + n_inputs in sequence.halts)

    def lose(self, sequence: Sequence) -> None:
        """Record that an aborted step has emptied the slot of a sequence."""
        self._cells.lose(self._slot(sequence))
        abandon(sequence, self.running)

    def mend(self) -> None:
        """Bring slots that a step has left incomplete back to where they are complete."""
        self._cells.mend()

    def forget_last(self, sequence: Sequence) -> None:
        """Have the last input of a sequence evaluated again, for the want of its sample."""
        slot = self._slot(sequence)
        n_past = sequence.layout.cut_start(slot.n_past - 1)
        self._cells.go_back(slot, self._cells.reach(slot, n_past))

    # --- cells -----------------------------------------------------------------------------

    def make_room(self, n_cells: int) -> bool:
        """Let idle slots forget until so many cells are free; return whether they are."""
        return self._cells.make_room(n_cells)

    def forget_idle(self) -> bool:
        """Drop all that idle slots remember; return whether there was any."""
        return self._cells.forget_idle()

    def n_obtainable(self) -> int:
        """Cells free or held by idle slots, less what running sequences still need."""
        return self.ledger.n_free + self._cells.n_idle() - self._n_promised()

    def can_take(self, sequence: Sequence) -> bool:
        """Whether the cells are obtainable that a sequence needs besides those it can share."""
        n_cells = len(sequence.inputs)
        if self.n_obtainable() < n_cells:
            n_cells -= n_shareable(sequence, self._before(sequence), self._cells)
        return self.can_hold(n_cells)

    def can_hold(self, n_cells: int) -> bool:
        """Whether so many cells are obtainable; if nobody runs, the paused give up theirs."""
        while self.n_obtainable() < n_cells:
            paused = [s for s in self.running if s.suspended_at is None]
            if not paused or self.active():
                return False
            self._suspend(paused[-1])
        return True

    def shift(self, sequence: Sequence) -> None:
        """Drop the oldest half after `n_keep`; what cannot be moved is evaluated again.

        Cells that another slot holds too cannot: they would move for both.
        """
        slot, layout, n_keep = self._slot(sequence), sequence.layout, sequence.n_keep
        stop = shift_stop(layout, n_keep, slot.n_past, self._limits.n_ctx)
        if self._cells.can_move(slot, n_keep):
            self._cells.move(slot, n_keep, stop)
        else:
            self._cells.go_back(slot, self._cells.reach(slot, n_keep))
        del sequence.inputs[n_keep:stop]
        slot.layout = sequence.layout = layout.without(n_keep, stop)
        if self._limits.needs_checkpoints:
            sequence.halts = [n_keep]  # where the next shift goes back to
        sequence.n_shifts += 1
        sequence.n_shifted += stop - n_keep
        abandon(sequence, self.running)

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

    def _suspend(self, sequence: Sequence) -> None:
        sequence.suspended_at = self._n_released
        sequence.n_suspended += 1
        sequence.follows, sequence.n_awaited = None, 0
        abandon(sequence, self.running)
        self._cells.forget(self._slot(sequence), 0)

    def _n_promised(self) -> int:
        """Cells that running sequences need for the inputs they have."""
        return sum(n_needed(s, self._cells) for s in self.running if s.suspended_at is None)

    def _before(self, sequence: Sequence) -> Iterable[Sequence]:
        """Return the running sequences that came before one."""
        return takewhile(lambda other: other is not sequence, self.running)

    def _slot(self, sequence: Sequence) -> Slot:
        return self.pool.slots[sequence.slot_id]

    def check(self) -> None:
        """Assert that slots, leases, cells and sequences agree."""
        self._cells.check()
        leased = sorted(s.slot_id for s in self.running)
        assert leased == [slot.slot_id for slot in self.pool.slots if slot.is_leased]
        for index, sequence in enumerate(self.running):
            assert sequence.suspended_at is None or sequence.n_past == 0
            assert sequence.n_past <= len(sequence.inputs)
            assert self._slot(sequence).inputs is sequence.inputs
            leader = sequence.follows
            if leader is not None:
                assert sequence.suspended_at is None
                assert leader in self.running[:index] or sequence.n_awaited == 0
                assert leader.options.cache_key == sequence.options.cache_key
