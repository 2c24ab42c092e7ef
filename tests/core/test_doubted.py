"""Rows of no numbers: who made them is found out by having each evaluated again, alone."""

import pytest

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointSave,
    KVRemove,
    Sampled,
    SampleFault,
    Step,
)
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.errors import EngineFailed
from tests.helpers import (
    ByteVocabulary,
    endings,
    make_batcher,
    make_limits,
    make_sequence,
    result_of,
    rows_of,
)

NO_NUMBER = SampleFault("nan", spoils_slot=True)


def run(batcher: Batcher, *spoiled: int) -> tuple[Step, list[Emission]]:
    """Run a step that has no number for some sequences."""

    def sample(seq_id: int) -> Sampled:
        return NO_NUMBER if seq_id in spoiled else 65

    step = batcher.plan(0.0)
    assert step is not None
    emissions = batcher.commit(step, result_of(step, sample), 0.0, 0.01)
    batcher.check()
    return step, emissions


def make_running(*, is_unified: bool) -> Batcher:
    """Return a batcher of three sequences that have generated a token each."""
    batcher = make_batcher(n_slots=3, n_batch=32, is_unified=is_unified)
    for seq_id in range(3):
        batcher.submit(make_sequence(seq_id, [97 + seq_id] * 4, max_tokens=9))
    run(batcher)
    return batcher


def test_a_sequence_that_was_given_no_number_starts_over_alone_and_then_with_the_others() -> None:
    batcher = make_running(is_unified=False)
    _, emissions = run(batcher, 1)
    assert endings(emissions) == {}
    step, _ = run(batcher)
    assert step.edits == (KVRemove(1, 0),)
    assert rows_of(step) == {1: 5}
    step, _ = run(batcher)
    assert rows_of(step) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("is_unified", [False, True])
def test_one_that_has_no_number_alone_either_fails_and_no_other_does(is_unified: bool) -> None:
    batcher = make_running(is_unified=is_unified)
    run(batcher, 1)
    _, emissions = run(batcher, 1)
    assert [type(each) for each in endings(emissions).values()] == [EngineFailed]
    n_generated = dict.fromkeys((0, 2), 0)
    while batcher.seq_ids:
        _, emissions = run(batcher)
        for each in emissions:
            n_generated[each.sequence.seq_id] += each.token is not None
        assert set(endings(emissions).values()) <= {"length"}
    assert n_generated == {0: 7, 2: 7}


def test_where_all_read_the_same_cells_all_are_given_up_and_who_has_no_token_runs_alone() -> None:
    batcher = make_running(is_unified=True)
    batcher.submit(make_sequence(7, [120] * 40, max_tokens=1))
    batcher.end(2, "cancelled")
    run(batcher, 0, 1)  # while another is amid its prompt, which may be what spoils them
    order = [rows_of(run(batcher)[0]) for _ in range(4)]
    assert order == [{0: 5}, {1: 5}, {7: 32}, {7: 8}]


def test_a_neighbour_whose_context_is_full_makes_room_in_it_before_it_starts_over() -> None:
    batcher = make_batcher(n_slots=2, n_ctx=8, is_unified=True)
    batcher.submit(make_sequence(0, [97] * 4, shift=True, limits=batcher.limits))
    batcher.submit(make_sequence(1, [98] * 3, limits=batcher.limits))
    for _ in range(4):
        run(batcher)
    run(batcher, 1)  # when the other has filled its last cell, and was given a token more
    assert rows_of(run(batcher)[0]) == {1: 7}
    assert rows_of(run(batcher)[0]) == {0: 5, 1: 1}


def make_with_window(*, is_unified: bool) -> Batcher:
    """Return a batcher that stops a prompt of 100 tokens at 96 for a checkpoint, beside another."""
    limits = make_limits(n_slots=2, n_ctx=128, n_batch=128, is_unified=is_unified, window=8)
    batcher = Batcher(limits, ByteVocabulary(), 0.05)
    batcher.submit(make_sequence(0, [97], limits=limits))
    batcher.submit(make_sequence(1, [98] * 100, limits=limits))
    return batcher


def test_no_checkpoint_is_saved_of_what_may_be_no_number() -> None:
    batcher = make_with_window(is_unified=True)
    step, _ = run(batcher, 0)
    assert rows_of(step) == {0: 1, 1: 96}
    step, _ = run(batcher)
    assert not any(isinstance(edit, CheckpointSave) for edit in step.edits)
    assert KVRemove(1, 0) in step.edits


@pytest.mark.parametrize("is_unified", [False, True])
def test_checkpoints_that_what_is_no_number_may_have_come_from_are_dropped(
    is_unified: bool,
) -> None:
    batcher = make_with_window(is_unified=is_unified)
    run(batcher)
    step, _ = run(batcher, 1)
    assert CheckpointSave(1, 1) in step.edits
    step, _ = run(batcher)
    assert CheckpointDrop(1) in step.edits
