"""A batcher, the cache that an engine would have, and every property that must hold."""

from collections.abc import Callable
from functools import partial
from random import Random

from runnerd.core.batch import (
    Batch,
    BatchKind,
    KVShift,
    Limits,
    Sampled,
    SampleFault,
    Step,
    StepResult,
)
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options, Sequence, admit
from runnerd.core.successor import successor
from runnerd.errors import RequestError
from tests.core.naive import NaiveCache, Row, cells_of, media_rows
from tests.core.speech import Said, Speech, as_said
from tests.core.step_rules import StepRules, stands_before
from tests.core.whole_units import assert_whole_units, units_of
from tests.helpers import END, ByteVocabulary, rows_named

CHECKPOINT_BYTES = 2**22  # a cell: 64 cells' worth of checkpoints are kept

Call = Callable[[Batcher], object]
Token = Callable[[int], Sampled]


class Simulation:
    """Makes calls on a batcher and checks each; `replay` makes them again on another."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.batcher = Batcher(limits, ByteVocabulary(), 0.05)
        self.cache = NaiveCache(limits)
        self.step: Step | None = None
        self.may_run_ahead = False  # as it was when the step began
        self.live: dict[int, Sequence] = {}
        self._speech: dict[int, Speech] = {}
        self._rows: dict[int, Row] = {}
        self._units: dict[int, tuple[int, ...]] = {}
        self._asked: dict[int, FinishReason | RequestError] = {}
        self._calls: list[Call] = []
        self._results: list[object] = []
        self._saved: tuple[tuple[int, int], ...] = ()
        self._n_made = 0
        self._was_aborted = False
        self._rules = StepRules(limits)
        self._first: dict[int, int] = {}  # the first input that a step evaluated, by seq_id

    def _do(self, call: Call) -> object:
        result = call(self.batcher)
        self._calls.append(call)
        self._results.append(result)
        self.batcher.check()
        return result

    # --- calls -----------------------------------------------------------------------------

    def submit(self, prompt: Prompt, options: Options) -> None:
        """Admit and queue a sequence, unless it is refused."""
        self._n_made += 1
        seq_id = self._n_made
        self._rows.update(media_rows(prompt))
        self._units.update(units_of(prompt))
        made: list[Sequence] = []

        def call(batcher: Batcher) -> str:
            try:
                sequence = admit(seq_id, prompt, options, self.limits, 0.0)
                batcher.submit(sequence)
            except RequestError as err:
                return err.code
            made.append(sequence)
            return "queued"

        if self._do(call) == "queued":
            self.live[seq_id] = made[0]
            self._speech[seq_id] = Speech(made[0])
            assert_whole_units(made[0].inputs, self._units)
            self._check_line()

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; the first such call decides why it ended."""
        if seq_id in self.live:
            self._asked.setdefault(seq_id, ending)
        self._hear(lambda batcher: batcher.end(seq_id, ending))
        assert self.batcher.wants_abort == self._is_worth_aborting()
        self._check_line()

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Pause or resume a sequence."""
        self._do(lambda batcher: batcher.pause(seq_id, paused=paused))
        self._rules.restart([seq_id])

    def wanted(self) -> tuple[int, ...]:
        """Return the media that are wanted, each once."""
        wanted = self.batcher.wanted_media()
        self._do(lambda batcher: batcher.wanted_media())
        assert len(wanted) == len(set(wanted))
        return wanted

    def offer(self, media_id: int) -> None:
        """Offer a medium, whether it is wanted or not: it is not wanted any more."""
        self._do(lambda batcher: batcher.offer_media(media_id, rows_named(media_id)))
        assert media_id not in self.wanted()

    def fail_media(self, media_id: int, error: RequestError) -> None:
        """Let a medium fail; who stands before it ends, or will when the step is over."""
        stuck = [s.seq_id for s in self._stuck([media_id])]
        self._asked.update(dict.fromkeys(stuck, error))
        self._hear(lambda batcher: batcher.fail_media(media_id, error))
        noted = {seq_id: s.ending for seq_id, s in self.live.items() if s.ending is not None}
        assert set(stuck) & self.live.keys() <= noted.keys()
        for seq_id, ending in noted.items():
            self._asked.setdefault(seq_id, ending)
        assert media_id not in self.wanted()
        self._check_line()

    def _stuck(self, media_ids: list[int]) -> list[Sequence]:
        """Return who could run but for one of these media, where it is wanted."""
        wanted = {*media_ids} & {*self.batcher.wanted_media()}
        return [s for s in self.batcher.residency.active() if stands_before(s, wanted)]

    def admit(self) -> None:
        """Give slots to those whose turn it is, ahead of the plan."""
        self._do(lambda batcher: batcher.admit(0.0))
        self._hear(lambda batcher: batcher.news())

    def plan(self) -> bool:
        """Plan a step and check it; return whether there was one."""
        residency = self.batcher.residency
        running = residency.running
        n_resident = sum(s.suspended_at is None for s in running)
        n_waiting = len(self.batcher.waiting)
        self._do(lambda batcher: batcher.plan(0.0))
        self.step = self.batcher.in_flight
        self._hear(lambda batcher: batcher.news())
        for sequence in running:
            told = self._speech[sequence.seq_id].n_processed
            assert bool(told) == sequence.options.wants_progress
        n_resident += n_waiting - len(self.batcher.waiting)
        if self.step is None:
            stuck = self._stuck([*self.batcher.wanted_media()])
            assert stuck == residency.active(), "somebody has work to do"
            if not stuck:
                assert all(sequence.paused for sequence in running), "nobody goes on"
                assert not self.batcher.waiting or residency.pool.n_free == 0, "a slot lies free"
            self._rest()
            return False
        self._edit(self.step)
        if self.batcher.waiting and residency.pool.n_free > 0:
            must_wait = any(s.suspended_at is not None and not s.paused for s in running)
            # Cells taken from somebody in this very plan go to newcomers in the next.
            must_wait |= sum(s.suspended_at is None for s in running) < n_resident
            n_needed = len(self.batcher.waiting.first.inputs)
            assert must_wait or residency.n_obtainable() < n_needed, "a slot lies free"
        self._rules.check(self.batcher, self.step, self.live)
        self.may_run_ahead = self.batcher.may_run_ahead
        return True

    def _rest(self) -> None:
        """Carry out the edits left behind when there is nothing to run.

        Checkpoints saved then may leave others to be dropped.
        """
        for _ in range(2):
            self._do(lambda batcher: batcher.plan_edits())
            step = self.batcher.in_flight
            if step is None:
                break
            assert not step.batches
            self._edit(step)
            assert not self.batcher.wants_abort
            result = self._run(step, lambda _: 0, 0, None)
            self._hear(partial(_committed, result=result))
        pending = self.batcher.residency.edits
        assert not pending or any(isinstance(edit, KVShift) for edit in pending)

    def _edit(self, step: Step) -> None:
        """Carry out a step's edits; what slots hold then is what they are said to hold."""
        cache, residency = self.cache, self.batcher.residency
        cache.edit(step.edits)
        saved = cache.saved(step.edits)
        self._saved = tuple((number, CHECKPOINT_BYTES * size) for number, size in saved)
        for slot in residency.pool.slots:
            held = cells_of(slot.inputs[: slot.n_past], self._rows)
            assert cache.slots[slot.slot_id] == held
            assert cache.n_fresh(slot.slot_id) >= slot.n_offered
            cache.assert_whole(slot.slot_id)
        assert cache.n_cells == residency.ledger.n_used

    def commit(self, token: Token, elapsed_s: float) -> None:
        """Run the step in flight and commit it."""
        step = self._in_flight()
        self._rules.ran(step)
        result = self._run(step, token, len(step.batches), None)
        self._hear(lambda batcher: batcher.commit(_same(batcher), result, 0.0, elapsed_s))
        self._was_aborted = False

    def follow(self, token: Token, elapsed_s: float) -> bool:
        """Run the step in flight, and begin its successor before it is recorded, if it has one.

        Return whether it has; else it is committed.
        """
        assert self.may_run_ahead
        step = self._in_flight()
        self._rules.ran(step)
        result = self._run(step, token, len(step.batches), None)
        following = successor(step, result.sampled, lambda token: token == END)
        if following is None:
            self._hear(lambda batcher: batcher.commit(_same(batcher), result, 0.0, elapsed_s))
            return False
        self._hear(
            lambda batcher: batcher.follow(_same(batcher), result, 0.0, elapsed_s, following)
        )
        self.step = self.batcher.in_flight
        assert self.step is following
        self._edit(following)
        self.may_run_ahead = self.batcher.may_run_ahead
        return True

    def back_off(self, token: Token, n_batches: int) -> None:
        """Run the first batches of the step in flight; the next finds no room."""
        result = self._run(self._in_flight(), token, n_batches, None)
        self._rules.found_no_room()
        self._hear(lambda batcher: batcher.back_off(_same(batcher), result, 0.0))
        self._was_aborted = False

    def abort(self, token: Token, n_batches: int, rng: Random) -> None:
        """Run the first batches of the step in flight; stop the next somewhere.

        Where cells move it is stopped only if the batcher wants it, which would be wrong.
        """
        step = self._in_flight()
        if self.cache.is_shifting and not self.batcher.wants_abort:
            self.commit(token, 0.01)
            return
        result = self._run(step, token, n_batches, self._stored(step.batches[n_batches], rng))
        self._rules.found_no_room()
        self._hear(lambda batcher: batcher.commit(_same(batcher), result, 0.0, 0.01))
        self._was_aborted = True

    def _in_flight(self) -> Step:
        assert self.step is not None
        return self.step

    def _run(
        self, step: Step, token: Token, n_batches: int, n_stored: tuple[int | None, ...] | None
    ) -> StepResult:
        sampled: list[Sampled] = []
        spoiled: list[int] = []
        self._note_first(step, n_batches, n_stored)
        for batch in step.batches[:n_batches]:
            self.cache.run(batch, self._rows)
            for span in batch.spans:
                if span.wants_logits:
                    sampled.append(self._speech[span.seq_id].sample(token(span.seq_id)))
                    if isinstance(sampled[-1], SampleFault) and sampled[-1].spoils_slot:
                        spoiled.append(span.slot_id)
        if n_stored is None and n_batches < len(step.batches):
            self.cache.is_shifting = False  # cells move before room is looked for
        if n_stored is not None:
            self.cache.run(step.batches[n_batches], self._rows, n_stored)
        if spoiled:
            self.cache.spoil(range(self.limits.n_slots) if self.limits.is_unified else spoiled)
        self.step = None
        oldest = self.cache.oldest() if self.limits.window else ()
        sampling_s = (0.001,) * len(sampled)
        return StepResult(n_batches, tuple(sampled), sampling_s, n_stored, oldest, self._saved)

    def _note_first(
        self, step: Step, n_batches: int, n_stored: tuple[int | None, ...] | None
    ) -> None:
        """Note from which input on each prompt was evaluated for it, until its first token."""
        ran = [(span, 1) for batch in step.batches[:n_batches] for span in batch.spans]
        if n_stored is not None:
            stopped = zip(step.batches[n_batches].spans, n_stored, strict=True)
            ran += [(span, n or 0) for span, n in stopped]
        starts: dict[int, int] = {}
        for span, n_rows in ran:
            sequence = self.live[span.seq_id]
            start = starts.setdefault(span.seq_id, sequence.n_past)
            if n_rows and sequence.n_generated == 0:
                self._first[span.seq_id] = min(start, self._first.get(span.seq_id, start))

    def _check_cached(self, sequence: Sequence) -> None:
        """Assert that a prompt was cached up to where its own rows begin, and no further."""
        if sequence.n_generated > 0 and not sequence.n_suspended and not sequence.n_shifts:
            assert sequence.n_cached == self._first[sequence.seq_id]

    def _stored(self, batch: Batch, rng: Random) -> tuple[int | None, ...]:
        """Return what is left of a batch that was stopped at some row.

        A group in one pass is stored whole or not at all; a state that cannot go back is lost.
        """
        n_left = 0 if batch.kind is BatchKind.MEDIA_NON_CAUSAL else rng.randint(0, batch.n_rows)
        stored: list[int | None] = []
        for span in batch.spans:
            n_rows = min(n_left, len(span.inputs))
            n_left -= n_rows
            is_cut = 0 < n_rows < len(span.inputs)
            stored.append(None if is_cut and not self.limits.can_rewind else n_rows)
        lost = {s.seq_id for s, n in zip(batch.spans, stored, strict=True) if n is None}
        return tuple(
            None if span.seq_id in lost else n_rows
            for span, n_rows in zip(batch.spans, stored, strict=True)
        )

    def replay(self) -> None:
        """Make all calls again: they give the same steps and say the same."""
        batcher = Batcher(self.limits, ByteVocabulary(), 0.05)
        for call, result in zip(self._calls, self._results, strict=True):
            assert call(batcher) == result

    # --- properties ------------------------------------------------------------------------

    def _is_worth_aborting(self) -> bool:
        if self.step is None or self._rules.generating:
            return False
        if any(isinstance(edit, KVShift) for edit in self.step.edits):
            return False
        seq_ids = {span.seq_id for batch in self.step.batches for span in batch.spans}
        ended = seq_ids & self._asked.keys()
        throws_back = self.limits.window > 0 or not self.limits.can_rewind
        return bool(ended) and (ended == seq_ids or not (throws_back or self._was_aborted))

    def _check_line(self) -> None:
        line = [*self.batcher.waiting]
        assert [self.batcher.n_ahead(s.seq_id) for s in line] == list(range(len(line)))

    def _hear(self, call: Callable[[Batcher], list[Emission]]) -> None:
        heard: list[Emission] = []

        def recorded(batcher: Batcher) -> list[Said]:
            emissions = call(batcher)
            if batcher is self.batcher:
                heard.extend(emissions)
            return [as_said(emission) for emission in emissions]

        self._do(recorded)
        for emission in heard:
            seq_id = emission.sequence.seq_id
            assert seq_id in self.live, "spoke after its end"
            self._speech[seq_id].hear(emission)
            if emission.ending is not None:
                self._check_cached(emission.sequence)
                assert_whole_units(emission.sequence.inputs, self._units)
                del self.live[seq_id]
                assert self._asked.pop(seq_id, emission.ending) is emission.ending
                self._speech.pop(seq_id).check_ended(emission.ending, self.limits)

    def drain(self, token: Token) -> None:
        """Run until every sequence has ended, within a bound; media come when nothing runs."""
        if self.step is not None:
            self.commit(token, 0.01)
        for seq_id in list(self.live):
            self.pause(seq_id, paused=False)
        n_most = 10 + sum(4 * self.limits.n_ctx + s.n_pending for s in self.live.values())
        for _ in range(2 * n_most):
            if self.plan():
                self.commit(token, 0.01)
                continue
            wanted = self.wanted()
            if not wanted:
                break
            self.offer(wanted[0])
        assert not self.live, f"still running after {2 * n_most} steps"
        assert self.batcher.seq_ids == ()
        assert self.batcher.residency.pool.n_free == self.limits.n_slots


def _committed(batcher: Batcher, result: StepResult) -> list[Emission]:
    return batcher.commit(_same(batcher), result, 0.0, 0.0)


def _same(batcher: Batcher) -> Step:
    assert batcher.in_flight is not None
    return batcher.in_flight


def fault_or_token(number: int) -> Sampled:
    """Return a fault for one number in 64, END for another, else a token of few bytes.

    Half of the faults are of rows that are no numbers.
    """
    if number % 64 == 0:
        return SampleFault("no token", spoils_slot=number % 128 == 0)
    if number % 64 == 1:
        return END
    return (97, 98, 0xE3, 0x81, 0x82, 99)[number % 6]
