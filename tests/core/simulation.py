"""A batcher, the cache that an engine would have, and every property that must hold."""

from collections.abc import Callable

from runnerd.core.batch import BatchKind, Limits, Sampled, SampleFault, Span, Step, StepResult
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options, Sequence, admit
from runnerd.errors import RequestError
from tests.core.fairness import Fairness
from tests.core.naive import NaiveCache, Row, cells_of, media_rows, text_before_stop
from tests.helpers import END, ByteVocabulary

Said = tuple[int, str, int | None, str | None]
Call = Callable[[Batcher], object]


class Simulation:
    """Makes calls on a batcher and checks each; `replay` makes them again on another."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.batcher = Batcher(limits, ByteVocabulary(), 0.05)
        self.cache = NaiveCache(limits)
        self.step: Step | None = None
        self.live: dict[int, Sequence] = {}
        self.said: dict[int, list[Emission]] = {}
        self.sampled: dict[int, list[Sampled]] = {}
        self._rows: dict[int, Row] = {}
        self._asked: dict[int, FinishReason | RequestError] = {}
        self._calls: list[Call] = []
        self._results: list[object] = []
        self._n_made = 0
        self._alone_before = False
        self._ring: list[Sequence] = []
        self._fairness = Fairness(limits.n_slots)

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
            self.said[seq_id] = []
            self.sampled[seq_id] = []

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; the first such call decides why it ended."""
        if seq_id in self.live:
            self._asked.setdefault(seq_id, ending)
        self._hear(lambda batcher: batcher.end(seq_id, ending))

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Pause or resume a sequence."""
        self._do(lambda batcher: batcher.pause(seq_id, paused=paused))
        self._fairness.restart([seq_id])

    def plan(self) -> bool:
        """Plan a step and check it; return whether there was one."""
        residency = self.batcher.residency
        running = residency.running
        n_resident = sum(s.suspended_at is None for s in running)
        n_waiting = len(self.batcher.waiting)
        self._do(lambda batcher: batcher.plan(0.0))
        self.step = self.batcher.in_flight
        n_resident += n_waiting - len(self.batcher.waiting)
        if self.step is None:
            assert all(sequence.paused for sequence in running), "somebody has work to do"
            assert not self.batcher.waiting or residency.pool.n_free == 0, "a slot lies free"
            return False
        self.cache.edit(self.step.edits)
        for slot in residency.pool.slots:
            held = cells_of(slot.inputs[: slot.n_past], self._rows)
            assert self.cache.slots[slot.slot_id] == held
        if self.batcher.waiting and residency.pool.n_free > 0:
            must_wait = any(s.suspended_at is not None and not s.paused for s in running)
            # Cells taken from somebody in this very plan go to newcomers in the next.
            must_wait |= sum(s.suspended_at is None for s in running) < n_resident
            n_needed = len(self.batcher.waiting[0].inputs)
            assert must_wait or residency.n_obtainable() < n_needed, "a slot lies free"
        self._check_step(self.step)
        return True

    def commit(self, token: Callable[[int], Sampled], elapsed_s: float) -> None:
        """Run the step in flight and commit it."""
        step, result = self._run(token, n_batches=None)
        self._fairness.step(self._ring, {s.seq_id for b in step.batches for s in b.spans})
        self._hear(lambda batcher: batcher.commit(_same(batcher), result, 0.0, elapsed_s))

    def back_off(self, token: Callable[[int], Sampled], n_batches: int) -> None:
        """Run the first batches of the step in flight; the next finds no room."""
        _, result = self._run(token, n_batches)
        self._fairness.restart([sequence.seq_id for sequence in self._ring])
        self._hear(lambda batcher: batcher.back_off(_same(batcher), result, 0.0))

    def _run(
        self, token: Callable[[int], Sampled], n_batches: int | None
    ) -> tuple[Step, StepResult]:
        step = self.step
        assert step is not None
        sampled: list[Sampled] = []
        for batch in step.batches[:n_batches]:
            self.cache.run(batch, self._rows)
            for span in batch.spans:
                if span.wants_logits:
                    sampled.append(token(span.seq_id))
                    self.sampled[span.seq_id].append(sampled[-1])
        self.step = None
        n_done = len(step.batches) if n_batches is None else n_batches
        return step, StepResult(n_done, tuple(sampled))

    def replay(self) -> None:
        """Make all calls again: they give the same steps and say the same."""
        batcher = Batcher(self.limits, ByteVocabulary(), 0.05)
        for call, result in zip(self._calls, self._results, strict=True):
            assert call(batcher) == result

    # --- properties ------------------------------------------------------------------------

    def _check_step(self, step: Step) -> None:
        assert 0 < step.n_rows <= self.limits.n_batch
        active = self.batcher.residency.active()
        self._ring = [s for s in active if s.n_pending > 0 and not s.is_decoding]
        generating = sorted((s for s in active if s.is_decoding), key=lambda s: s.slot_id)
        spans = [span for batch in step.batches for span in batch.spans]
        is_alone = bool(generating) and spans[0].seq_id not in {s.seq_id for s in generating}
        if is_alone:
            assert not self._alone_before, "two groups alone in a row"
            assert len(spans) == 1
            assert step.batches[0].kind is BatchKind.MEDIA_NON_CAUSAL
            assert step.n_rows > self.limits.n_batch - len(generating)
        else:
            first = [span.seq_id for span in spans[: len(generating)]]
            assert first == [s.seq_id for s in generating], "a generating row is missing"
        self._alone_before = is_alone
        order = [batch.kind for batch in step.batches]
        assert order == sorted(order, key=list(BatchKind).index)
        for batch in step.batches:
            if batch.kind is BatchKind.MEDIA_NON_CAUSAL:
                assert batch.n_rows <= self.limits.n_ubatch
                assert len({span.seq_id for span in batch.spans}) == len(batch.spans)
        self._check_spans(spans)

    def _check_spans(self, spans: list[Span]) -> None:
        n_past = {s.seq_id: s.n_past for s in self.batcher.residency.running}
        for span in spans:
            sequence = self.live[span.seq_id]
            assert span.slot_id == sequence.slot_id
            assert not sequence.paused
            start = n_past[span.seq_id]
            stop = n_past[span.seq_id] = start + len(span.inputs)
            assert span.inputs == tuple(sequence.inputs[start:stop])
            is_last = stop == len(sequence.inputs)
            assert span.wants_logits == (is_last and sequence.options.max_tokens != 0)

    def _hear(self, call: Callable[[Batcher], list[Emission]]) -> None:
        heard: list[Emission] = []

        def recorded(batcher: Batcher) -> list[Said]:
            emissions = call(batcher)
            if batcher is self.batcher:
                heard.extend(emissions)
            return [_as_said(emission) for emission in emissions]

        self._do(recorded)
        for emission in heard:
            seq_id = emission.sequence.seq_id
            assert seq_id in self.live, "spoke after its end"
            self.said[seq_id].append(emission)
            if emission.ending is not None:
                self._check_ended(self.live.pop(seq_id), emission.ending)

    def _check_ended(self, sequence: Sequence, ending: FinishReason | RequestError) -> None:
        said = self.said.pop(sequence.seq_id)
        sampled = self.sampled.pop(sequence.seq_id)
        assert self._asked.pop(sequence.seq_id, ending) is ending
        tokens = [token for token in sampled if isinstance(token, int) and token != END]
        assert [emission.token for emission in said if emission.token is not None] == tokens
        options = sequence.options
        text, stop = text_before_stop(bytes(token % 256 for token in tokens), options.stops)
        assert "".join(emission.text for emission in said) == text
        assert (stop is not None) == (sequence.detokenizer.stopped_by is not None)
        n_inputs = sequence.n_prompt - sequence.n_truncated + len(tokens)
        assert len(sequence.inputs) == n_inputs - sequence.n_shifted
        assert sequence.n_generated == len(tokens)
        match ending:
            case "stop":
                assert sampled[-1] == END
            case "stop_sequence":
                assert sequence.detokenizer.stopped_by == stop is not None
            case "length":
                assert len(tokens) == options.max_tokens
            case "context":
                assert not options.shift
                assert n_inputs == self.limits.n_ctx + 1
            case "cancelled":
                pass
            case RequestError():
                pass

    def drain(self, token: Callable[[int], Sampled]) -> None:
        """Run until every sequence has ended, within a bound."""
        if self.step is not None:
            self.commit(token, 0.01)
        for seq_id in list(self.live):
            self.pause(seq_id, paused=False)
        n_most = 10 + sum(4 * self.limits.n_ctx + s.n_pending for s in self.live.values())
        for _ in range(n_most):
            if not self.plan():
                break
            self.commit(token, 0.01)
        assert not self.live, f"still running after {n_most} steps"
        assert self.batcher.seq_ids == ()
        assert self.batcher.residency.pool.n_free == self.limits.n_slots


def _same(batcher: Batcher) -> Step:
    assert batcher.in_flight is not None
    return batcher.in_flight


def _as_said(emission: Emission) -> Said:
    ending = None if emission.ending is None else repr(emission.ending)
    return emission.sequence.seq_id, emission.text, emission.token, ending


def fault_or_token(number: int) -> Sampled:
    """Return a fault for one number in 64, END for another, else a token of few bytes."""
    if number % 64 == 0:
        return SampleFault("no finite logits")
    if number % 64 == 1:
        return END
    return (97, 98, 0xE3, 0x81, 0x82, 99)[number % 6]
