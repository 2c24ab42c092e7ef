"""What is left behind when sequences end: cells that others share, edits that nobody carries."""

import pytest

from runnerd.core.batch import CheckpointSave, KVShift, SamplerClose, Step, StepResult
from runnerd.core.batcher import Batcher
from tests.helpers import (
    ByteVocabulary,
    make_batcher,
    make_limits,
    make_sequence,
    result_of,
    run_all,
    run_step,
)

# --- an idle slot that shares cells ----------------------------------------------------------

HEAD = [97 + n % 20 for n in range(200)]


def steps_until_first_shift(batcher: Batcher, seq_id: int) -> Step:
    """Run steps; return the one whose edits come of the first shift."""
    while True:
        run_step(batcher)
        (sequence,) = (s for s in batcher.residency.running if s.seq_id == seq_id)
        if sequence.n_shifts:
            return run_step(batcher)[0]


@pytest.mark.parametrize("is_idle", [True, False])
def test_only_a_slot_in_use_keeps_the_cells_that_it_shares_from_moving(is_idle: bool) -> None:
    batcher = make_batcher(n_slots=3, n_ctx=1024, n_batch=512, is_unified=True)
    limits = batcher.limits
    batcher.submit(make_sequence(1, [*HEAD, *[5] * 300], limits=limits, shift=True))
    for _ in range(4):
        run_step(batcher)
    max_tokens = 1 if is_idle else 900
    batcher.submit(make_sequence(2, [*HEAD, *[6] * 10], limits=limits, max_tokens=max_tokens))
    step = steps_until_first_shift(batcher, 1)
    assert any(isinstance(edit, KVShift) for edit in step.edits) == is_idle
    assert (step.n_rows == 1) == is_idle


# --- edits -----------------------------------------------------------------------------------


def test_the_edits_of_the_last_end_make_a_step_without_rows() -> None:
    batcher = make_batcher()
    assert batcher.plan_edits() is None
    batcher.submit(make_sequence(7, [1, 2], max_tokens=1))
    run_all(batcher)
    step = batcher.plan_edits()
    assert step is not None
    assert (step.edits, step.batches, step.n_rows) == ((SamplerClose(7),), (), 0)
    batcher.end(7, "cancelled")
    assert not batcher.wants_abort
    assert batcher.commit(step, StepResult(0, ()), 0.0, 0.0) == []
    assert batcher.plan_edits() is None


def test_who_is_cancelled_while_such_a_step_runs_ends_with_it() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2]))
    batcher.submit(make_sequence(2, [1, 2], max_tokens=1))
    run_step(batcher)
    batcher.pause(1, paused=True)
    step = batcher.plan_edits()
    assert step is not None
    assert batcher.end(1, "cancelled") == []
    assert not batcher.wants_abort
    said = batcher.commit(step, StepResult(0, ()), 0.0, 0.0)
    assert [emission.ending for emission in said] == ["cancelled"]
    batcher.check()


def test_cells_that_move_wait_for_rows() -> None:
    batcher = make_batcher(n_slots=1, n_ctx=16)
    batcher.submit(make_sequence(1, [1] * 15, limits=batcher.limits, shift=True))
    while not any(isinstance(edit, KVShift) for edit in batcher.residency.edits):
        run_step(batcher)
    batcher.pause(1, paused=True)
    assert batcher.plan(0.0) is None
    assert batcher.plan_edits() is None


def test_a_checkpoint_left_behind_is_saved_with_its_size() -> None:
    limits = make_limits(n_slots=1, can_rewind=False, can_shift=False)
    batcher = Batcher(limits, ByteVocabulary(), 0.05, checkpoint_budget_bytes=10)
    batcher.submit(make_sequence(1, range(30), limits=limits))
    step = batcher.plan(0.0)
    assert step is not None
    batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
    batcher.pause(1, paused=True)
    step = batcher.plan_edits()
    assert step is not None
    (made,) = (edit for edit in step.edits if isinstance(edit, CheckpointSave))
    batcher.commit(step, StepResult(0, (), saved=((made.checkpoint_id, 10),)), 0.0, 0.0)
    assert batcher.residency.checkpoints.n_bytes == 10
