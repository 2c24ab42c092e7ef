"""Who holds which slot, from which prefix, and who gives way when cells run out.

When cells run out, idle slots forget first, then the youngest sequence is suspended: it keeps
its slot and its inputs, and evaluates them again later, before any newcomer; but not before all
newcomers for ever. The oldest that runs is never suspended, so somebody always gets on.
"""

from collections.abc import Iterable
from itertools import takewhile

from runnerd.core.batch import Edit, Limits, SamplerClose, SamplerOpen, StepResult
from runnerd.core.behind import Behind
from runnerd.core.cells import Cells
from runnerd.core.checkpoints import BUDGET_BYTES, Checkpoints
from runnerd.core.doubt import doubted_alone, start_over
from runnerd.core.following import Pace, abandon, is_over
from runnerd.core.kv import KVLedger
from runnerd.core.prompt import shift_stop
from runnerd.core.sequence import Sequence
from runnerd.core.slots import Lease, SlotPool
from runnerd.core.starting import go_on, n_needed, n_shareable, take_slot

PATIENCE = 8  # times that cells are freed for suspended sequences before newcomers may pass


class Residency:
    """The running sequences, in order of arrival, and what they hold."""

    def __init__(self, limits: Limits, checkpoint_budget_bytes: int = BUDGET_BYTES) -> None:
        self.running: list[Sequence] = []
        self._limits = limits
        self._cells = Cells(limits, checkpoint_budget_bytes)
        self._behind = Behind(self.running)
        self.n_prompt_rows = limits.n_batch  # that a step carries, as of late
        self._lost: set[int] = set()  # seq_ids; of slots that a step has emptied
        self._entered_at = 0  # as `_n_freed` was when newcomers could last come in
        self._n_freed = 0  # times that an end or a shift has given cells back

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
        """Return the sequences that may take part in a step; one that is doubted runs alone."""
        active = [
            s for s in self.running if s.suspended_at is None and s.follows is None and not s.paused
        ]
        return doubted_alone(active)

    def _can_anybody_run(self) -> bool:
        return any(map(_can_run, self.running))

    @property
    def is_short(self) -> bool:
        """Whether a sequence that could run is suspended for want of cells."""
        return any(s.suspended_at is not None and not s.paused for s in self._behind.sequences)

    # --- slots -----------------------------------------------------------------------------

    def admit(self, sequence: Sequence, lease: Lease) -> None:
        """Give a sequence the slot that suits it best; the lease goes back if that fails.

        Its prefix is what is cached in that slot, a copy of what is in another, or what another
        sequence is evaluating.
        """
        try:
            take_slot(sequence, lease, self._behind.sequences, self._cells, self._pace())
            self.make_room(n_needed(sequence, self._cells) + self._n_promised())
            history = sequence.penalty_history()
        except BaseException:
            sequence.lease = sequence.follows = None
            sequence.n_awaited = 0
            lease.give_back()
            raise
        self.running.append(sequence)
        self._behind.add(sequence)
        if sequence.wants_token:
            self.edits.append(SamplerOpen(sequence.seq_id, sequence.options.sampling, history))

    def release(self, sequence: Sequence, lease: Lease) -> None:
        """Take a sequence out; its slot keeps what it has cached and the client has seen."""
        self.running.remove(sequence)
        self._behind.remove(sequence)
        abandon(sequence, self._behind.sequences)
        sequence.follows = None
        self._cells.settle(lease.slot, sequence.n_seen)
        lease.give_back()
        self._n_freed += 1
        if sequence.wants_token:
            self.edits.append(SamplerClose(sequence.seq_id))

    def resume(self, *, has_newcomers: bool = False) -> bool:
        """Let those go on whose prefix is there now, or who lost theirs; then suspended ones.

        Suspended ones are taken up, oldest first, once cells have been freed or nobody can run.

        Returns:
            Whether newcomers may come in: all are taken up that are not paused, or they were
            kept out for long enough to come first for once.
        """
        self._behind.tidy()
        for sequence in self.running if self._lost else self._behind.sequences:
            has_lost = sequence.seq_id in self._lost and sequence.suspended_at is None
            if has_lost or is_over(sequence):
                self._go_on(sequence)
        self._lost.clear()
        if not has_newcomers:
            self._entered_at = self._n_freed
        elif self._n_freed - self._entered_at >= PATIENCE and self._can_anybody_run():
            self._entered_at = self._n_freed
            return True
        for sequence in self._behind.sequences:
            if sequence.suspended_at is None or sequence.paused:
                continue
            n_chances = self._n_freed - sequence.suspended_at
            if n_chances == 0 and self._can_anybody_run():
                return False
            if not self.can_take(sequence, self._headroom(sequence, n_chances)):
                return False
            sequence.suspended_at = None
            self._go_on(sequence)
            self.make_room(self._n_promised())
        self._entered_at = self._n_freed
        return True

    def _go_on(self, sequence: Sequence) -> None:
        go_on(sequence, self._before(sequence), self._cells, self._pace())

    def _pace(self) -> Pace:
        active = doubted_alone([s for s in self._behind.sequences if _can_run(s)])
        ring = [s for s in active if not s.is_decoding]
        return Pace(self.n_prompt_rows, len(ring), sum(s.n_pending for s in ring))

    # --- what steps did --------------------------------------------------------------------

    def observe(self, result: StepResult) -> None:
        """Take note of what a step has left in the cache, before what it stored is counted."""
        self._cells.observe(result)

    def store(self, sequence: Sequence, n_inputs: int) -> None:
        """Count inputs that a step has put into the cache."""
        slot = sequence.slot
        sequence.is_fresh = False
        if sequence.n_generated == 0:  # of what was cached, some may have been lost since
            sequence.n_cached = min(sequence.n_cached, slot.n_past)
        is_halt = bool(sequence.halts) and slot.n_past + n_inputs in sequence.halts
        self._cells.store(slot, n_inputs, is_halt=is_halt)

    def lose(self, sequence: Sequence) -> None:
        """Record that an aborted step has emptied the slot of a sequence, which will go on."""
        self._cells.lose(sequence.slot)
        self._lost.add(sequence.seq_id)
        self._behind.look_again()
        abandon(sequence, self.running)

    def mend(self) -> None:
        """Bring slots that a step has left incomplete back to where they are complete."""
        self._cells.mend()
        self._behind.look_again()

    def forget_last(self, sequence: Sequence) -> None:
        """Have the last input of a sequence evaluated again, for the want of its sample."""
        slot = sequence.slot
        n_past = sequence.layout.cut_start(slot.n_past - 1)
        self._cells.go_back(slot, self._cells.reach(slot, n_past))
        self._behind.look_again()

    def start_over(self, spoiled: list[Sequence]) -> None:
        """Let go of all cells that may hold what is no number; who needs them evaluates again."""
        start_over(spoiled, self.running, self._cells)
        self._behind.look_again()

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

    def _is_obtainable(self, n_cells: int) -> bool:
        n_more = n_cells + self._n_promised() - self.ledger.n_free
        return n_more <= 0 or n_more <= self._cells.n_idle()  # looked at if need be: they are many

    def _headroom(self, sequence: Sequence, n_chances: int) -> int:
        """Return how many cells a suspended sequence asks for, beyond those of its inputs.

        Without any it would be suspended again at once. It asks for less with every chance that
        it could not take, and for none if nobody else runs.
        """
        if not self._can_anybody_run():
            return 0
        n_most = self._limits.n_ctx - len(sequence.inputs)
        return max(0, min(self._limits.n_ctx // 8 >> n_chances // 2, n_most))

    def can_take(self, sequence: Sequence, n_headroom: int = 0) -> bool:
        """Whether the cells are obtainable that a sequence needs besides those it can share."""
        n_cells = len(sequence.inputs) + n_headroom
        if self._is_obtainable(n_cells):
            return True
        n_shared = n_shareable(sequence, self._before(sequence), self._cells, self._pace())
        return self.can_hold(n_cells - n_shared)

    def can_hold(self, n_cells: int) -> bool:
        """Whether so many cells are obtainable; if nobody runs, the paused give up theirs."""
        while not self._is_obtainable(n_cells):
            paused = [s for s in self.running if s.suspended_at is None]
            if not paused or self._can_anybody_run():
                return False
            self._suspend(paused[-1])
        return True

    def shift(self, sequence: Sequence) -> None:
        """Drop the oldest half after `n_keep`; what cannot be moved is evaluated again.

        Cells that another slot holds too cannot: they would move for both. One that is idle
        forgets them.
        """
        slot, layout, n_keep = sequence.slot, sequence.layout, sequence.n_keep
        stop = shift_stop(layout, n_keep, slot.n_past, self._limits.n_ctx)
        if self._cells.can_move(slot, n_keep) or self._cells.claim(slot, n_keep):
            self._cells.move(slot, n_keep, stop)
        else:
            self._cells.go_back(slot, self._cells.reach(slot, n_keep))
        del sequence.inputs[n_keep:stop]
        slot.layout = sequence.layout = layout.without(n_keep, stop)
        if self._limits.needs_checkpoints:
            sequence.halts = [n_keep]  # where the next shift goes back to
        sequence.n_shifts += 1
        sequence.n_shifted += stop - n_keep
        self._n_freed += 1
        self._behind.look_again()
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
        sequence.suspended_at = self._n_freed
        sequence.n_suspended += 1
        sequence.follows, sequence.n_awaited = None, 0
        abandon(sequence, self.running)
        self._cells.forget(sequence.slot, 0)
        self._behind.look_again()

    def _n_promised(self) -> int:
        """Cells that running sequences need for the inputs they have."""
        behind = [s for s in self._behind.sequences if s.suspended_at is None]
        return self._behind.n_generating + sum(n_needed(s, self._cells) for s in behind)

    def _before(self, sequence: Sequence) -> Iterable[Sequence]:
        """Return those that are behind and came before a sequence."""
        return takewhile(lambda other: other is not sequence, self._behind.sequences)

    def check(self) -> None:
        """Assert that slots, leases, cells and sequences agree."""
        self._cells.check()
        self._behind.check()
        leased = sorted(s.slot_id for s in self.running)
        assert leased == [slot.slot_id for slot in self.pool.slots if slot.is_leased]
        for index, sequence in enumerate(self.running):
            assert sequence.suspended_at is None or sequence.n_past == 0
            assert sequence.n_past <= len(sequence.inputs)
            assert sequence.slot.inputs is sequence.inputs
            leader = sequence.follows
            if leader is not None:
                assert sequence.suspended_at is None
                assert leader in self.running[:index] or sequence.n_awaited == 0
                assert leader.options.cache_key == sequence.options.cache_key


def _can_run(sequence: Sequence) -> bool:
    return sequence.suspended_at is None and sequence.follows is None and not sequence.paused
