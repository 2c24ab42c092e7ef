"""Steps that are stopped because of a cancel: when that is worth it, and what is left of them."""

import pytest

from runnerd.core.batch import KVRemove, KVShift, Step, StepResult
from runnerd.core.batcher import Batcher
from runnerd.core.budget import MIN_ROWS
from tests.helpers import (
    ByteVocabulary,
    Image,
    endings,
    make_batcher,
    make_limits,
    make_prompt,
    make_sequence,
    rows_of,
    run_all,
    run_step,
    text_of,
)


def plan(batcher: Batcher) -> Step:
    step = batcher.plan(0.0)
    assert step is not None
    return step


def aborted(*n_stored: int | None, n_batches: int = 0) -> StepResult:
    return StepResult(n_batches, (), n_stored=n_stored)


# --- when -----------------------------------------------------------------------------------


def test_a_step_is_worth_stopping_once_a_sequence_has_ended_whose_prompt_it_evaluates() -> None:
    batcher = make_batcher(n_slots=3)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [seq_id] * 50))
    assert not batcher.wants_abort
    plan(batcher)
    assert not batcher.wants_abort
    batcher.submit(make_sequence(3, [3]))
    batcher.end(3, "cancelled")
    assert not batcher.wants_abort
    batcher.end(1, "cancelled")
    assert batcher.wants_abort


def test_a_step_in_which_something_generates_runs_to_its_end() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2]))
    run_step(batcher)
    batcher.submit(make_sequence(2, [2] * 50))
    plan(batcher)
    batcher.end(2, "cancelled")
    assert not batcher.wants_abort


def test_of_two_steps_in_a_row_only_one_is_stopped_while_others_are_in_them() -> None:
    batcher = make_batcher(n_slots=3, n_batch=96)
    for seq_id in (1, 2, 3):
        batcher.submit(make_sequence(seq_id, [seq_id] * 60))
    step = plan(batcher)
    batcher.end(1, "cancelled")
    said = batcher.commit(step, aborted(0, 0, 0), 0.0, 0.0)
    assert endings(said) == {1: "cancelled"}
    plan(batcher)
    batcher.end(2, "cancelled")
    assert not batcher.wants_abort
    batcher.end(3, "cancelled")
    assert batcher.wants_abort


@pytest.mark.parametrize(("window", "can_rewind"), [(0, False), (8, True)])
def test_where_a_stop_throws_others_back_it_waits_until_all_have_ended(
    window: int, can_rewind: bool
) -> None:
    limits = make_limits(
        n_slots=2, n_batch=64, can_shift=False, window=window, can_rewind=can_rewind
    )
    batcher = Batcher(limits, ByteVocabulary(), 0.05)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [seq_id] * 50, limits=limits))
    plan(batcher)
    batcher.end(1, "cancelled")
    assert not batcher.wants_abort
    batcher.end(2, "cancelled")
    assert batcher.wants_abort


def test_a_step_that_moves_cells_runs_to_its_end() -> None:
    batcher = make_batcher(n_slots=2, n_ctx=32, n_batch=32)
    batcher.submit(make_sequence(1, [1] * 30, limits=batcher.limits, shift=True))
    while not any(isinstance(edit, KVShift) for edit in batcher.residency.edits):
        run_step(batcher)
    batcher.pause(1, paused=True)
    batcher.submit(make_sequence(2, [2] * 30, limits=batcher.limits))
    step = plan(batcher)
    assert rows_of(step) == {2: 30}
    assert any(isinstance(edit, KVShift) for edit in step.edits)
    batcher.end(2, "cancelled")
    assert not batcher.wants_abort


# --- what is left -----------------------------------------------------------------------------


def test_rows_stored_by_a_step_that_was_stopped_are_not_evaluated_again() -> None:
    batcher = make_batcher(n_slots=2, n_batch=64)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [seq_id] * 40, max_tokens=2))
    step = plan(batcher)
    assert rows_of(step) == {1: 32, 2: 32}
    batcher.end(1, "cancelled")
    assert endings(batcher.commit(step, aborted(32, 11), 0.0, 0.0)) == {1: "cancelled"}
    batcher.check()
    assert batcher.n_prefilled == 43
    assert rows_of(run_step(batcher)[0]) == {2: 29}
    assert text_of(run_all(batcher), 2) == "A"


def test_a_prompt_stored_whole_without_its_sample_has_its_last_row_evaluated_again() -> None:
    batcher = make_batcher(n_slots=2, n_batch=64)
    batcher.submit(make_sequence(1, [1] * 10, max_tokens=2))
    batcher.submit(make_sequence(2, [2] * 40, max_tokens=2))
    step = plan(batcher)
    batcher.end(2, "cancelled")
    batcher.commit(step, aborted(10, 0), 0.0, 0.0)
    batcher.check()
    again, said = run_step(batcher)
    assert rows_of(again) == {1: 1}
    assert KVRemove(0, 9) in again.edits
    assert text_of([*said, *run_all(batcher)], 1) == "AA"


def test_a_prompt_that_was_all_ends_when_it_is_stored() -> None:
    batcher = make_batcher(n_slots=2, n_batch=64)
    batcher.submit(make_sequence(1, [1] * 10, max_tokens=0))
    batcher.submit(make_sequence(2, [2] * 40))
    step = plan(batcher)
    batcher.end(2, "cancelled")
    said = batcher.commit(step, aborted(10, 0), 0.0, 0.0)
    assert endings(said) == {1: "length", 2: "cancelled"}


def test_a_slot_that_the_stop_has_emptied_starts_again() -> None:
    batcher = make_batcher(n_slots=2, n_batch=16)
    batcher.submit(make_sequence(1, [1] * 40, max_tokens=2))
    run_step(batcher)
    batcher.submit(make_sequence(2, [2] * 40))
    step = plan(batcher)
    batcher.end(2, "cancelled")
    n_stored = {1: None, 2: 0}
    spans = [span for batch in step.batches for span in batch.spans]
    batcher.commit(step, aborted(*(n_stored[s.seq_id] for s in spans)), 0.0, 0.0)
    batcher.check()
    assert batcher.residency.ledger.n_used == 0
    assert text_of(run_all(batcher), 1) == "AA"


def test_whole_batches_before_the_one_that_was_stopped_count() -> None:
    batcher = make_batcher(n_slots=1, n_batch=64)
    prompt = make_prompt([1] * 10, Image(7, 12), [2] * 3)
    batcher.submit(make_sequence(1, prompt, max_tokens=2))
    step = plan(batcher)
    assert [batch.n_rows for batch in step.batches] == [10, 12]
    batcher.end(1, "cancelled")
    batcher.commit(step, aborted(0, n_batches=1), 0.0, 0.0)
    batcher.check()
    assert batcher.residency.ledger.n_used == 10


def test_a_step_that_was_stopped_says_nothing_about_how_long_rows_take() -> None:
    batcher = make_batcher(n_slots=3, n_ctx=200, n_batch=256)
    for seq_id in (1, 2):
        prompt = [seq_id] * 100
        batcher.submit(make_sequence(seq_id, prompt, limits=batcher.limits))
    step = plan(batcher)
    batcher.end(1, "cancelled")
    batcher.commit(step, aborted(1, 1), 0.0, 100.0)
    run_step(batcher, elapsed_s=0.01)
    run_step(batcher, elapsed_s=0.01)
    batcher.submit(make_sequence(3, [3] * 190, limits=batcher.limits))
    assert rows_of(plan(batcher))[3] > MIN_ROWS
