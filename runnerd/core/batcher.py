"""The batcher: which inputs go into the next forward pass, and what came of the last.

`plan` proposes a step, `commit` records that it ran or was aborted, `back_off` that it found no
room in the KV cache. A second `plan` before one of them is an error. Same calls in, same steps
out.
"""

from runnerd.core.admission import give_slots, n_left
from runnerd.core.batch import KVShift, Limits, Step, StepResult
from runnerd.core.checkpoints import BUDGET_BYTES
from runnerd.core.emission import Emission, Vocabulary, last_word, n_generated_limit, progress
from runnerd.core.fill import Fill
from runnerd.core.line import Line
from runnerd.core.outcome import find_spoiled, no_room, store, take_samples
from runnerd.core.residency import Residency
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.core.shelf import Shelf
from runnerd.core.successor import may_have_successor
from runnerd.errors import RequestError

BACK_OFFS = 3  # in a row, with nothing left to give, before the sequence itself must fail


class Batcher:
    """Schedules sequences over slots, cells and rows. `n_prefilled` prompt rows were evaluated."""

    def __init__(
        self,
        limits: Limits,
        vocabulary: Vocabulary,
        target_itl_s: float,
        checkpoint_budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        assert limits.n_slots <= limits.n_batch, "no room for a row of every slot"
        assert 2 <= limits.n_ctx <= limits.n_cells, "no room for one sequence alone"
        self.limits = limits
        self.waiting = Line()
        self.residency = Residency(limits, checkpoint_budget_bytes)
        self.in_flight: Step | None = None
        self.n_prefilled = 0
        self._vocabulary = vocabulary
        self._shelf = Shelf()
        self._fill = Fill(limits, self.residency, self._shelf, target_itl_s)
        self._sequences: dict[int, Sequence] = {}
        self._news: list[Emission] = []
        self._n_steps = 0
        self._n_backed_off = 0
        self._was_aborted = False

    # --- from the runtime ------------------------------------------------------------------

    @property
    def seq_ids(self) -> tuple[int, ...]:
        """Every sequence that has not ended."""
        return tuple(self._sequences)

    @property
    def n_generated_limit(self) -> int:
        """How many tokens a request gets that sets no limit, and shifts for ever."""
        return n_generated_limit(self.limits.n_ctx)

    def n_waiting(self, n_more: int = 0) -> int:
        """Return how many, of the queue and so many behind it, no free slot is about to take.

        At most: prompts that share cells with others may find room sooner.
        """
        return n_left(self.waiting, self.residency, n_more)

    def n_ahead(self, seq_id: int) -> int:
        """Return how many in the queue are before a sequence; 0 if it is not there itself."""
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.lease is not None:
            return 0
        return self.waiting.n_ahead(sequence)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._sequences[sequence.seq_id] = sequence
        self.waiting.append(sequence)

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> list[Emission]:
        """End a sequence from outside; during a step this is noted and acted on at commit."""
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.ending is not None:
            return []
        said: list[Emission] = []
        if self.in_flight is not None and sequence.lease is not None:
            sequence.ending = ending
        else:
            said.append(self._finish(sequence, ending))
        self._shelf.tidy(self.residency.running)
        return said

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Leave a sequence out of steps, or take it up again."""
        if seq_id in self._sequences:
            self._sequences[seq_id].paused = paused

    def aim_at(self, target_itl_s: float) -> None:
        """Change the gap between tokens that prompts must not push beyond, from now on."""
        self._fill.aim_at(target_itl_s)

    @property
    def wants_abort(self) -> bool:
        """Whether the step in flight is worth stopping.

        It evaluates the prompt of a sequence that has ended, and nothing generates in it. Others
        in it get on all the same: after a step that was aborted theirs is not, nor is any that
        would throw back what cannot simply go back. One that moves cells runs to its end.

        Source: llama_decode moves cells first, and once more if it was stopped there.
        """
        step = self.in_flight
        if step is None or not step.batches or self._fill.n_decoding > 0:
            return False
        if any(isinstance(edit, KVShift) for edit in step.edits):
            return False
        seq_ids = {span.seq_id for batch in step.batches for span in batch.spans}
        n_ended = sum(self._sequences[seq_id].ending is not None for seq_id in seq_ids)
        may_throw_back = not self.limits.needs_checkpoints and not self._was_aborted
        return n_ended == len(seq_ids) or (n_ended > 0 and may_throw_back)

    # --- media -----------------------------------------------------------------------------

    def wanted_media(self) -> tuple[int, ...]:
        """Return the media to encode for sequences that have slots, those needed soonest first.

        One that is cached already is not among them, nor one that another sequence evaluates.
        Each `plan` may change them. A sequence that has to start again may want one again.
        """
        return self._shelf.wanted(self.residency.running)

    def awaits_media(self, sequence: Sequence) -> bool:
        """Whether a sequence with a slot gets on no further before a medium is encoded."""
        return sequence.follows is None and self._shelf.blocks(sequence)

    def offer_media(self, media_id: int, media: object) -> None:
        """Take an encoded medium; it is kept as long as a sequence is about to need it."""
        self._shelf.put(media_id, media)

    def fail_media(self, media_id: int, error: RequestError) -> list[Emission]:
        """End the sequences that wait for a medium which cannot be encoded."""
        failed = self._shelf.waiting_for(media_id, self.residency.running)
        return [said for sequence in failed for said in self.end(sequence.seq_id, error)]

    # --- planning --------------------------------------------------------------------------

    def admit(self, now: float) -> None:
        """Give slots to those whose turn it is, as `plan` does: what they want is known before."""
        assert self.in_flight is None, "admit before the last step was committed"
        if self.residency.resume(has_newcomers=len(self.waiting) > 0):
            self._news += give_slots(self.waiting, self.residency, self._n_steps, now)
        self._shelf.tidy(self.residency.running)  # somebody may have been suspended

    def plan(self, now: float) -> Step | None:
        """Return the next step, or nothing if no sequence has anything to evaluate."""
        self.admit(now)
        batches = self._fill.batches()
        self._shelf.tidy(self.residency.running)  # or by now
        if not batches:
            return None
        self._n_steps += 1
        edits = tuple(self.residency.edits)
        self.residency.edits.clear()
        self.in_flight = Step(self._n_steps, edits, batches, self._fill.adapters)
        return self.in_flight

    def plan_edits(self) -> Step | None:
        """Return a step without rows for the edits left behind when nobody has rows to run.

        Checkpoints and samplers that nobody needs take memory. Cells that move wait for rows.
        """
        assert self.in_flight is None, "plan before the last step was committed"
        edits = tuple(self.residency.edits)
        if not edits or any(isinstance(edit, KVShift) for edit in edits):
            return None
        self._n_steps += 1
        self.residency.edits.clear()
        self.in_flight = Step(self._n_steps, edits, (), self._fill.adapters)
        return self.in_flight

    def news(self) -> list[Emission]:
        """Return, once, what newcomers have to say: how much of their prompts was cached."""
        news, self._news = self._news, []
        return news

    # --- recording -------------------------------------------------------------------------

    def commit(
        self, step: Step, result: StepResult, now: float, elapsed_s: float
    ) -> list[Emission]:
        """Record that a step ran, or was aborted; return what its sequences have to say."""
        if step.batches:
            self._was_aborted = result.is_aborted and self.wants_abort
        if step.batches and not result.is_aborted:
            self._fill.observe(step.n_rows, elapsed_s)
            self._n_backed_off = 0
        return self._record(step, result, now)

    @property
    def may_run_ahead(self) -> bool:
        """Whether the successor of the step in flight may be begun before that is committed."""
        step = self.in_flight
        return step is not None and may_have_successor(
            step, self._sequences, self.residency, self.limits.n_ctx
        )

    def follow(
        self, step: Step, result: StepResult, now: float, elapsed_s: float, following: Step
    ) -> list[Emission]:
        """Record that a step ran, where its successor runs by now: that is in flight then.

        Who was ended from outside meanwhile has a row in that, too, and ends with it.
        """
        assert step is self.in_flight, "not the step in flight"
        n_ended = self._n_ended()
        self._was_aborted = False
        self._fill.observe(step.n_rows, elapsed_s)
        self._n_backed_off = 0
        self.residency.observe(result)
        store(step, result, self._sequences, self.residency)
        n_ctx = self.limits.n_ctx
        emissions = take_samples(step, result, self._sequences, self._vocabulary, n_ctx, now)
        assert self._n_ended() == n_ended, "a token has ended a sequence that runs on"
        self._n_steps = following.number
        self.in_flight = following
        return emissions

    def _n_ended(self) -> int:
        return sum(sequence.ending is not None for sequence in self._sequences.values())

    def back_off(self, step: Step, result: StepResult, now: float) -> list[Emission]:
        """Record that a step found no room after some of its batches, and give something up.

        In this order: what idle slots remember; half of the prompt rows; the youngest
        sequence, suspended until another has ended; at last the one that is left, if it
        still finds no room when tried again.
        """
        self._was_aborted = False
        had_idle = self.residency.forget_idle()
        emissions = self._record(step, result, now)
        if not (had_idle or self._fill.halve(step.n_rows) or self.residency.suspend_youngest()):
            self._n_backed_off += 1
            if self._n_backed_off > BACK_OFFS:
                batch = step.batches[result.n_batches]
                emissions += self.end(batch.spans[0].seq_id, no_room(batch, self.residency.ledger))
        self._shelf.tidy(self.residency.running)
        return emissions

    def _record(self, step: Step, result: StepResult, now: float) -> list[Emission]:
        assert step is self.in_flight, "not the step in flight"
        self.in_flight = None
        self.residency.observe(result)
        sequences = self._sequences
        self.n_prefilled += store(step, result, sequences, self.residency)
        running, n_ctx = list(self.residency.running), self.limits.n_ctx
        telling = [sequence for sequence in running if sequence.options.wants_progress]
        emissions = [said for sequence in telling for said in progress(sequence)]
        emissions += take_samples(step, result, sequences, self._vocabulary, n_ctx, now)
        spoiled = find_spoiled(step, result, sequences)
        for sequence in running:
            n_past, n_inputs = sequence.slot.n_past, len(sequence.inputs)
            if n_past == n_inputs and sequence.ending is None and sequence not in spoiled:
                self._had_no_sample(sequence)
            if sequence.ending is not None:
                emissions.append(self._finish(sequence, sequence.ending))
            elif n_past == n_ctx < n_inputs:
                self.residency.shift(sequence)
        if spoiled:  # behind what looks at how far each of them had got
            self.residency.start_over(spoiled)
        if result.n_batches < len(step.batches):
            self.residency.mend()
        self._shelf.tidy(self.residency.running)
        return emissions

    def _had_no_sample(self, sequence: Sequence) -> None:
        """Have the last input evaluated again, or end a sequence that wants no token."""
        if not sequence.wants_token:
            sequence.ending = "length"
            return
        self.residency.forget_last(sequence)

    def _finish(self, sequence: Sequence, ending: FinishReason | RequestError) -> Emission:
        """Let go of all that a sequence holds."""
        del self._sequences[sequence.seq_id]
        emission = last_word(sequence, ending)
        if sequence.lease is None:
            self.waiting.remove(sequence)
        else:
            self.residency.release(sequence, sequence.lease)
        return emission

    def check(self) -> None:
        """Assert the invariants, which hold between any two calls."""
        self.residency.check()
        self._shelf.check(self.residency.running)
        n_running = len(self.residency.running)
        assert len(self._sequences) == n_running + len(self.waiting)
        assert all(sequence.n_pending > 0 for sequence in self.residency.running)
        if self.in_flight is not None:
            assert self.in_flight.n_rows <= self.limits.n_batch, "step over n_batch"
