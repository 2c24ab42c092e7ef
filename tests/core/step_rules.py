"""What must be true of every step that a batcher plans."""

from collections import Counter, defaultdict
from collections.abc import Container, Mapping

from runnerd.core.adapters import HOLD_STEPS
from runnerd.core.batch import Adapters, BatchKind, Limits, Step
from runnerd.core.batcher import Batcher
from runnerd.core.sequence import Sequence
from tests.core.fairness import Fairness
from tests.helpers import rows_named


class StepRules:
    """Checks one step after another; `ring` and `generating` are those of the last."""

    def __init__(self, limits: Limits) -> None:
        self.ring: list[Sequence] = []
        self.generating: list[Sequence] = []
        self._limits = limits
        self._alone_before = False
        self._adapters: Adapters = ()
        self._waited = Counter[Adapters]()
        self._fairness: defaultdict[Adapters, Fairness] = defaultdict(
            lambda: Fairness(limits.n_slots)
        )

    def restart(self, seq_ids: list[int]) -> None:
        """Count the waits of these anew."""
        for fairness in self._fairness.values():
            fairness.restart(seq_ids)

    def ran(self, step: Step) -> None:
        """Count a step that ran."""
        in_step = {span.seq_id for batch in step.batches for span in batch.spans}
        self._fairness[step.adapters].step(self.ring, in_step)

    def found_no_room(self) -> None:
        """Count a step that did not run to its end: whoever waits for rows waits anew."""
        self.restart([sequence.seq_id for sequence in self.ring])

    def check(self, batcher: Batcher, step: Step, live: Mapping[int, Sequence]) -> None:
        """Assert that a step, planned but not yet recorded, is as it must be."""
        assert 0 < step.n_rows <= self._limits.n_batch
        wanted = batcher.wanted_media()
        active = [s for s in batcher.residency.active() if s.n_pending > 0]
        wanting = [s for s in active if not stands_before(s, wanted)]
        self._check_turn(wanting, step)
        of_set = [s for s in wanting if s.options.adapters == step.adapters]
        self.ring = [s for s in of_set if not s.is_decoding]
        generating = sorted((s for s in of_set if s.is_decoding), key=lambda s: s.slot_id)
        spans = [span for batch in step.batches for span in batch.spans]
        is_alone = bool(generating) and spans[0].seq_id not in {s.seq_id for s in generating}
        if is_alone:
            assert not self._alone_before, "two groups alone in a row"
            assert len(spans) == 1
            assert step.batches[0].kind is BatchKind.MEDIA_NON_CAUSAL
            assert step.n_rows > self._limits.n_batch - len(generating)
        else:
            first = [span.seq_id for span in spans[: len(generating)]]
            assert first == [s.seq_id for s in generating], "a generating row is missing"
        self._alone_before = is_alone
        self.generating = [] if is_alone else generating
        self._check_batches(step)
        self._check_spans(batcher, step, live)

    def _check_turn(self, wanting: list[Sequence], step: Step) -> None:
        """One set of adapters a step; each that is wanted has one in so many."""
        sets = {s.options.adapters for s in wanting}
        assert step.adapters in sets
        others = sets - {step.adapters}
        self._waited = Counter({adapters: self._waited[adapters] + 1 for adapters in others})
        assert all(n <= HOLD_STEPS * 3 for n in self._waited.values()), "adapters starve"

    def _check_batches(self, step: Step) -> None:
        order = [batch.kind for batch in step.batches]
        assert order == sorted(order, key=list(BatchKind).index)
        for batch in step.batches:
            if batch.kind is BatchKind.MEDIA_NON_CAUSAL:
                assert batch.n_rows <= self._limits.n_ubatch
                assert len({span.seq_id for span in batch.spans}) == len(batch.spans)

    def _check_spans(self, batcher: Batcher, step: Step, live: Mapping[int, Sequence]) -> None:
        n_past = {s.seq_id: s.n_past for s in batcher.residency.running}
        for span in (span for batch in step.batches for span in batch.spans):
            sequence = live[span.seq_id]
            assert span.slot_id == sequence.slot_id
            assert not sequence.paused
            assert sequence.follows is None
            assert sequence.options.adapters == step.adapters
            start = n_past[span.seq_id]
            stop = n_past[span.seq_id] = start + len(span.inputs)
            assert span.inputs == tuple(sequence.inputs[start:stop])
            is_last = stop == len(sequence.inputs)
            assert span.wants_logits == (is_last and sequence.options.max_tokens != 0)
            group = sequence.layout.group_at(start)
            is_encoded = group is not None and group.encoded
            assert span.media == (rows_named(span.media_id) if is_encoded else None)


def stands_before(sequence: Sequence, media_ids: Container[int]) -> bool:
    """Whether the next input of a sequence is a row of one of these media, to be encoded."""
    group = sequence.layout.group_at(sequence.n_past)
    return group is not None and group.encoded and group.media_id in media_ids
