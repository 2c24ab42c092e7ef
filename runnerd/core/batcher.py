"""The batcher: which inputs go into the next forward pass, and what came of the last.

`plan` proposes a step, `commit` records that it ran, `back_off` that it found no room in the
KV cache. A second `plan` before one of them is an error. Same calls in, same steps out.
"""

from collections import deque
from itertools import islice

from runnerd.core.batch import Batch, Limits, Step, StepResult
from runnerd.core.budget import PrefillBudget
from runnerd.core.deal import Draft, deal, decode_span, n_least, pack
from runnerd.core.emission import Emission, Vocabulary, take_up
from runnerd.core.residency import Residency
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.errors import EngineFailed, RequestError

BACK_OFFS = 3  # in a row, with nothing left to give, before the sequence itself must fail


class Batcher:
    """Schedules sequences over slots, cells and rows. `n_prefilled` prompt rows were evaluated."""

    def __init__(self, limits: Limits, vocabulary: Vocabulary, target_itl_s: float) -> None:
        assert limits.n_slots <= limits.n_batch, "no room for a row of every slot"
        assert 2 <= limits.n_ctx <= limits.n_cells, "no room for one sequence alone"
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.residency = Residency(limits)
        self.in_flight: Step | None = None
        self.n_prefilled = 0
        self._vocabulary = vocabulary
        self._budget = PrefillBudget(limits.n_batch, target_itl_s)
        self._sequences: dict[int, Sequence] = {}
        self._n_steps = 0
        self._n_backed_off = 0
        self._prefill_cap = limits.n_batch
        self._n_decoding = 0
        self._group_went_alone = False

    # --- from the runtime ------------------------------------------------------------------

    @property
    def seq_ids(self) -> tuple[int, ...]:
        """Every sequence that has not ended."""
        return tuple(self._sequences)

    def n_waiting(self, n_more: int = 0) -> int:
        """Return how many, of the queue and so many behind it, no free slot is about to take."""
        n_taken, residency = 0, self.residency
        if residency.pool.n_free > 0 and not residency.is_short:
            n_cells = residency.n_obtainable()
            for sequence in islice(self.waiting, residency.pool.n_free):
                n_cells -= len(sequence.inputs)
                if n_cells < 0:
                    break
                n_taken += 1
            else:
                n_taken += min(n_more, residency.pool.n_free - n_taken)
        return len(self.waiting) + n_more - n_taken

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._sequences[sequence.seq_id] = sequence
        self.waiting.append(sequence)

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> list[Emission]:
        """End a sequence from outside; during a step this is noted and acted on at commit."""
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.ending is not None:
            return []
        if self.in_flight is not None and sequence.lease is not None:
            sequence.ending = ending
            return []
        return [self._finish(sequence, ending)]

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Leave a sequence out of steps, or take it up again."""
        if seq_id in self._sequences:
            self._sequences[seq_id].paused = paused

    # --- planning --------------------------------------------------------------------------

    def plan(self, now: float) -> Step | None:
        """Return the next step, or nothing if no sequence has anything to evaluate."""
        assert self.in_flight is None, "plan before the last step was committed"
        if self.residency.resume_suspended():
            self._admit_waiting(now)
        decoding, ring = self._with_room()
        batches = self._group_alone(decoding, ring) or self._fill(decoding, ring)
        if not batches:
            return None
        self._n_steps += 1
        self.in_flight = Step(self._n_steps, tuple(self.residency.edits), batches)
        self.residency.edits.clear()
        return self.in_flight

    def _admit_waiting(self, now: float) -> None:
        """Give free slots to waiting sequences, in order, while their prompts' cells are there."""
        while self.waiting and self.residency.pool.n_free > 0:
            sequence = self.waiting[0]
            if not self.residency.can_hold(len(sequence.inputs)):
                return
            lease = self.residency.pool.acquire()
            assert lease is not None
            self.residency.admit(sequence, lease)
            self.waiting.popleft()
            sequence.last_step = self._n_steps
            sequence.timings.start(now)

    def _with_room(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return who generates, in slot order, and the ring: who has prompt left to evaluate.

        The head of the ring is whoever waits longest; newcomers come last. There is a cell
        for every generating row and for the least that the head can take.
        """
        while True:
            decoding: list[Sequence] = []
            ring: list[Sequence] = []
            for sequence in self.residency.active():
                if sequence.is_decoding:
                    decoding.append(sequence)
                elif sequence.n_pending > 0:
                    ring.append(sequence)
            decoding.sort(key=lambda s: s.slot_id)
            ring.sort(key=lambda s: s.last_step)
            n_rows = len(decoding) + (n_least(ring[0]) if ring else 0)
            if self.residency.make_room(n_rows):
                return decoding, ring
            found = self.residency.suspend_youngest()
            assert found, "no room for one sequence alone"

    def _fill(self, decoding: list[Sequence], ring: list[Sequence]) -> tuple[Batch, ...]:
        """Put every generating row into the step, and prompt rows into what is left."""
        drafts: list[Draft] = []
        self._n_decoding = len(decoding)
        self._group_went_alone = False
        if ring:
            n_room = self.limits.n_batch - len(decoding)
            n_rows = min(self._budget.rows(len(decoding)), self._prefill_cap)
            self.residency.make_room(len(decoding) + min(n_rows, sum(s.n_pending for s in ring)))
            n_room = min(n_room, self.residency.ledger.n_free - len(decoding))
            drafts = deal(ring, min(n_rows, n_room), n_room)
        return pack([decode_span(s) for s in decoding], drafts, self.limits.n_ubatch)

    def _group_alone(self, decoding: list[Sequence], ring: list[Sequence]) -> tuple[Batch, ...]:
        """Give a group that generating rows leave no room for its own step, never two in a row."""
        if self._group_went_alone or not ring:
            return ()
        n_rows = n_least(ring[0])
        if n_rows <= self.limits.n_batch - len(decoding):
            return ()
        draft = Draft(ring[0])
        draft.take(1, n_rows)
        self._n_decoding = 0
        self._group_went_alone = True
        return pack([], [draft], self.limits.n_ubatch)

    # --- recording -------------------------------------------------------------------------

    def commit(
        self, step: Step, result: StepResult, now: float, elapsed_s: float
    ) -> list[Emission]:
        """Record that a step ran; return what its sequences have to say."""
        self._budget.observe(self._n_decoding, step.n_rows - self._n_decoding, elapsed_s)
        self._prefill_cap = self.limits.n_batch
        self._n_backed_off = 0
        return self._record(step, result, now)

    def back_off(self, step: Step, result: StepResult, now: float) -> list[Emission]:
        """Record that a step found no room after some of its batches, and give something up.

        In this order: what idle slots remember; half of the prompt rows; the youngest
        sequence, suspended until another has ended; at last the one that is left, if it
        still finds no room when tried again.
        """
        n_prefill = step.n_rows - self._n_decoding
        had_idle = self.residency.forget_idle()
        emissions = self._record(step, result, now)
        if had_idle:
            return emissions
        if n_prefill > 1 and self._prefill_cap > 1:
            self._prefill_cap = min(n_prefill, self._prefill_cap) // 2
        elif not self.residency.suspend_youngest():
            self._n_backed_off += 1
            if self._n_backed_off > BACK_OFFS:
                emissions += self._fail_for_room(step.batches[result.n_batches])
        return emissions

    def _fail_for_room(self, batch: Batch) -> list[Emission]:
        ledger = self.residency.ledger
        error = EngineFailed(
            f"no room in the KV cache for {batch.n_rows} rows,"
            f" {ledger.n_used} of {ledger.n_cells} cells in use",
            n_rows=batch.n_rows,
            n_cells_used=ledger.n_used,
            n_cells=ledger.n_cells,
        )
        return self.end(batch.spans[0].seq_id, error)

    def _record(self, step: Step, result: StepResult, now: float) -> list[Emission]:
        assert step is self.in_flight, "not the step in flight"
        self.in_flight = None
        emissions: list[Emission] = []
        sampled = iter(result.sampled)
        vocabulary, n_ctx = self._vocabulary, self.limits.n_ctx
        for batch in step.batches[: result.n_batches]:
            for span in batch.spans:
                sequence = self._sequences[span.seq_id]
                if not sequence.is_decoding:
                    self.n_prefilled += len(span.inputs)
                self.residency.store(sequence, len(span.inputs))
                sequence.last_step = step.number
                if span.wants_logits:
                    token = next(sampled)
                    emissions.append(take_up(sequence, token, vocabulary, n_ctx, now))
                elif sequence.n_pending == 0 and sequence.ending is None:
                    sequence.ending = "length"  # max_tokens is 0: the prompt was all
        for sequence in list(self.residency.running):
            if sequence.ending is not None:
                emissions.append(self._finish(sequence, sequence.ending))
            elif sequence.n_past == n_ctx and sequence.n_pending > 0:
                self.residency.shift(sequence)
        return emissions

    def _finish(self, sequence: Sequence, ending: FinishReason | RequestError) -> Emission:
        """Let go of all that a sequence holds."""
        sequence.ending = ending
        del self._sequences[sequence.seq_id]
        if sequence.lease is None:
            self.waiting.remove(sequence)
        else:
            self.residency.release(sequence, sequence.lease)
        return Emission(sequence, sequence.detokenizer.finish(), ending=ending)

    def check(self) -> None:
        """Assert the invariants, which hold between any two calls."""
        self.residency.check()
        n_running = len(self.residency.running)
        assert len(self._sequences) == n_running + len(self.waiting)
        if self.in_flight is not None:
            assert self.in_flight.n_rows <= self.limits.n_batch, "step over n_batch"
