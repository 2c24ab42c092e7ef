"""What a recurrent state goes on from when its slot was emptied, and where a new prompt starts."""

from runnerd.core.batch import CheckpointRestore, CheckpointSave, Limits, Step, StepResult
from runnerd.core.batcher import Batcher
from tests.helpers import ByteVocabulary, make_limits, make_sequence, rows_of

TEXT = [97 + n % 50 for n in range(1000)]


def make_recurrent(*, has_attention: bool = False, n_slots: int = 2) -> Limits:
    return make_limits(
        n_slots=n_slots,
        n_ctx=2048,
        n_batch=256,
        can_shift=False,
        can_rewind=False,
        has_attention=has_attention,
    )


class Run:
    """Runs steps, and says what checkpoints they saved."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.batcher = Batcher(limits, ByteVocabulary(), 0.05)
        self.n_rows = 0
        self.n_cached = 0
        self.restored: list[CheckpointRestore] = []

    def submit(self, seq_id: int, prompt: list[int]) -> None:
        self.batcher.submit(make_sequence(seq_id, prompt, limits=self.limits, max_tokens=2))

    def step(self, *, stopped: bool = False, seq_id: int = 0) -> Step:
        step = self.batcher.plan(0.0)
        assert step is not None
        self.restored += [edit for edit in step.edits if isinstance(edit, CheckpointRestore)]
        saved = tuple(
            (edit.checkpoint_id, 10) for edit in step.edits if isinstance(edit, CheckpointSave)
        )
        spans = [span for batch in step.batches for span in batch.spans]
        sampled = () if stopped else (65,) * sum(span.wants_logits for span in spans)
        n_stored = (None,) * len(spans) if stopped else None
        n_batches = 0 if stopped else len(step.batches)
        result = StepResult(n_batches, sampled, n_stored=n_stored, saved=saved)
        self.n_rows += 0 if stopped else rows_of(step).get(seq_id, 0)
        for said in self.batcher.commit(step, result, 0.0, 0.01):
            if said.sequence.seq_id == seq_id and said.ending is not None:
                self.n_cached = said.sequence.n_cached
        self.batcher.check()
        return step

    def run(self, seq_id: int = 0) -> None:
        while self.batcher.seq_ids:
            self.step(seq_id=seq_id)


def second_turn(*, has_attention: bool) -> Run:
    """Return a run in which the second turn of a chat has just lost its slot."""
    run = Run(make_recurrent(has_attention=has_attention))
    run.submit(1, TEXT)
    run.run()
    run.submit(2, [*TEXT, 65, 65, *[5] * 600])
    run.step(stopped=True)
    return run


def test_a_state_that_was_lost_goes_on_from_its_checkpoint() -> None:
    run = second_turn(has_attention=False)
    run.run(2)
    assert run.restored
    n_kept = run.restored[0].n_pos
    assert n_kept > 900
    assert (run.n_cached, run.n_rows) == (n_kept, 1602 - n_kept + 1)


def test_beside_attention_a_checkpoint_is_of_no_use_to_an_empty_slot() -> None:
    run = second_turn(has_attention=True)
    run.run(2)
    assert (run.restored, run.n_cached, run.n_rows) == ([], 0, 1602 + 1)


def test_a_checkpoint_of_a_recurrent_model_is_of_use_when_every_slot_holds_something_else() -> None:
    run = Run(make_recurrent())
    run.submit(1, TEXT)
    run.run()
    for seq_id, token in ((2, 7), (3, 8)):
        run.submit(seq_id, [token] * 300)
    run.run()
    run.restored.clear()
    run.submit(4, [*TEXT, *[5] * 50])
    run.run(4)
    assert len(run.restored) == 1
    assert run.n_cached == run.restored[0].n_pos > 900
    assert run.n_cached + run.n_rows == 1050 + 1


def test_what_was_lost_before_a_token_came_does_not_count_as_cached() -> None:
    run = Run(make_recurrent(has_attention=True, n_slots=1))
    run.submit(1, TEXT)
    run.run()
    run.submit(2, [*TEXT, 65, *[5] * 600])
    run.step()
    run.step(stopped=True)
    run.run(2)
    assert run.n_cached == 0
