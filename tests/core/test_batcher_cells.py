"""What gives way when the cells run out, by the ledger's count or by the engine's."""

from runnerd.core.batch import BatchKind, KVRemove, Step, StepResult
from runnerd.core.batcher import BACK_OFFS, Batcher
from runnerd.errors import EngineFailed
from tests.helpers import (
    Image,
    endings,
    make_batcher,
    make_prompt,
    make_sequence,
    result_of,
    rows_of,
    run_all,
    run_step,
    text_of,
)


def no_room(batcher: Batcher) -> tuple[Step, list[object]]:
    """Plan a step of which no batch finds room; return it and what was said."""
    step = batcher.plan(0.0)
    assert step is not None
    said: list[object] = [*batcher.back_off(step, StepResult(0, ()), 0.0)]
    batcher.check()
    return step, said


# --- full cache ------------------------------------------------------------------------------


def test_when_cells_run_out_the_youngest_waits_and_all_say_everything() -> None:
    batcher = make_batcher(n_slots=3, n_ctx=16, n_cells=16)
    for seq_id in range(3):
        batcher.submit(make_sequence(seq_id, [seq_id] * 2))
    said = run_all(batcher)
    assert list(endings(said).items()) == [(0, "context"), (1, "context"), (2, "context")]
    assert all(text_of(said, seq_id) == "A" * 15 for seq_id in range(3))


def test_a_newcomer_does_not_take_the_cells_a_suspended_one_waits_for() -> None:
    batcher = make_batcher(n_slots=3, n_ctx=32, n_cells=32)
    batcher.submit(make_sequence(1, [1] * 10))
    batcher.submit(make_sequence(2, [2] * 20, max_tokens=4))
    for seq_id in range(3, 9):
        batcher.submit(make_sequence(seq_id, [seq_id] * 12, max_tokens=1))
    assert list(endings(run_all(batcher)))[:2] == [1, 2]


def test_the_older_one_keeps_its_cells_when_a_younger_one_comes_back() -> None:
    batcher = make_batcher(n_slots=2, n_ctx=16, n_cells=16)
    batcher.submit(make_sequence(1, [1] * 4))
    batcher.submit(make_sequence(2, [2] * 4))
    batcher.pause(2, paused=True)
    for _ in range(12):
        run_step(batcher)
    assert batcher.residency.ledger.n_free == 1
    batcher.pause(2, paused=False)
    assert rows_of(run_step(batcher)[0]) == {1: 1}


def test_a_paused_sequence_does_not_keep_cells_from_those_that_wait() -> None:
    batcher = make_batcher(n_slots=2, n_ctx=16, n_cells=16)
    batcher.submit(make_sequence(1, [1] * 10, max_tokens=3))
    run_step(batcher)
    batcher.pause(1, paused=True)
    batcher.submit(make_sequence(2, [2] * 10, max_tokens=1))
    assert endings(run_all(batcher)) == {2: "length"}
    batcher.pause(1, paused=False)
    said = run_all(batcher)
    assert (text_of(said, 1), endings(said)) == ("AA", {1: "length"})


# --- no room in the engine -------------------------------------------------------------------


def test_without_room_idle_slots_forget_first() -> None:
    batcher = make_batcher(n_slots=2)
    batcher.submit(make_sequence(1, [1] * 8, max_tokens=1))
    run_all(batcher)
    batcher.submit(make_sequence(2, [2] * 8))
    no_room(batcher)
    step, _ = run_step(batcher)
    assert step.edits == (KVRemove(0, 0),)
    assert rows_of(step) == {2: 8}


def test_then_half_of_the_prompt_rows_wait() -> None:
    batcher = make_batcher(n_slots=2)
    batcher.submit(make_sequence(1, [1] * 8))
    assert [rows_of(no_room(batcher)[0]) for _ in range(4)] == [{1: 8}, {1: 4}, {1: 2}, {1: 1}]
    assert rows_of(run_step(batcher)[0]) == {1: 1}
    assert rows_of(run_step(batcher)[0]) == {1: 7}


def test_then_the_youngest_is_suspended_until_another_has_ended() -> None:
    batcher = make_batcher(n_slots=2)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [seq_id] * 3, max_tokens=4))
    run_step(batcher)
    no_room(batcher)
    said = []
    for _ in range(3):
        step, heard = run_step(batcher)
        assert rows_of(step) == {1: 1}
        said += heard
    said += run_all(batcher)
    assert list(endings(said).items()) == [(1, "length"), (2, "length")]
    assert text_of(said, 2) == "AAA"


def test_at_last_the_one_that_is_left_fails_with_numbers() -> None:
    batcher = make_batcher(n_slots=2)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [seq_id] * 3, max_tokens=4))
    run_step(batcher)
    for _ in range(1 + BACK_OFFS):
        assert no_room(batcher)[1] == []
    step = batcher.plan(0.0)
    assert step is not None
    said = batcher.back_off(step, StepResult(0, ()), 0.0)
    (error,) = endings(said).values()
    assert isinstance(error, EngineFailed)
    assert error.details == {"n_rows": 1, "n_cells_used": 3, "n_cells": 128}
    assert endings(run_all(batcher)) == {2: "length"}


def test_now_and_then_without_room_is_not_the_end_of_the_last_one() -> None:
    batcher = make_batcher(n_slots=1)
    batcher.submit(make_sequence(1, [1], max_tokens=2 * BACK_OFFS))
    said = []
    for _ in range(2 * BACK_OFFS):
        no_room(batcher)
        said += run_step(batcher)[1]
    assert endings(said) == {1: "length"}


def test_a_bystander_is_not_failed_for_a_prompt_that_finds_no_room() -> None:
    batcher = make_batcher(n_slots=2)
    batcher.submit(make_sequence(1, [1] * 3, max_tokens=20))
    run_step(batcher)
    batcher.submit(make_sequence(2, [2] * 8))
    for _ in range(12):
        step = batcher.plan(0.0)
        assert step is not None
        if 2 in rows_of(step):
            batcher.back_off(step, StepResult(0, ()), 0.0)
        else:
            batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
        batcher.check()
    assert 1 in batcher.seq_ids


def test_batches_that_ran_before_the_one_without_room_count() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1, 2], Image(7, 4), [3])))
    step = batcher.plan(0.0)
    assert step is not None
    assert len(step.batches) == 2
    assert batcher.back_off(step, StepResult(1, ()), 0.0) == []
    batcher.check()
    step, _ = run_step(batcher)
    assert [batch.kind for batch in step.batches] == [BatchKind.MEDIA_NON_CAUSAL]
    assert step.batches[0].spans[0].pos == 2
