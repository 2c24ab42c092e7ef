"""The batcher: one behaviour each. All of them together: `test_batcher_machine.py`."""

import pytest

from runnerd.core.batch import SampleFault
from runnerd.errors import EngineFailed
from tests.helpers import (
    END,
    endings,
    make_batcher,
    make_sequence,
    result_of,
    rows_of,
    run_all,
    run_step,
    text_of,
)

# --- queue -----------------------------------------------------------------------------------


def test_who_waits_is_whoever_no_free_slot_is_about_to_take() -> None:
    batcher = make_batcher(n_slots=2)
    batcher.submit(make_sequence(0, [1, 2]))
    assert [batcher.n_waiting(n_more) for n_more in range(4)] == [0, 0, 1, 2]
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [1, 2]))
    assert [batcher.n_waiting(n_more) for n_more in range(2)] == [1, 2]
    run_step(batcher)
    assert batcher.n_waiting() == 1
    assert batcher.seq_ids == (0, 1, 2)


def test_who_waits_for_cells_waits_though_slots_are_free() -> None:
    batcher = make_batcher(n_slots=3, n_ctx=16, n_cells=16)
    batcher.submit(make_sequence(0, range(1, 11)))
    run_step(batcher)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, range(1, 11)))
    assert batcher.residency.pool.n_free == 2
    assert batcher.n_waiting() == 2
    assert batcher.n_waiting(1) == 3
    run_step(batcher)
    assert len(batcher.waiting) == 2
    batcher.end(0, "cancelled")
    assert batcher.n_waiting() == 1
    run_step(batcher)
    assert len(batcher.waiting) == 1


def test_prompt_rows_are_counted_when_they_are_evaluated() -> None:
    batcher = make_batcher(n_slots=1, n_batch=4)
    batcher.submit(make_sequence(0, [1, 2, 3, 4, 5, 6], max_tokens=3))
    run_step(batcher)
    assert batcher.n_prefilled == 4
    run_all(batcher)
    assert batcher.n_prefilled == 6
    batcher.submit(make_sequence(1, [1, 2, 3, 4, 5, 9], max_tokens=3))
    run_all(batcher)
    assert batcher.n_prefilled == 7


def test_sequences_start_in_the_order_they_came_whatever_is_cached() -> None:
    batcher = make_batcher(n_slots=1)
    for seq_id in range(6):
        prompt = [9, 9, 9] if seq_id == 2 else [1, 2, 3, 4]
        batcher.submit(make_sequence(seq_id, prompt, max_tokens=1))
    assert list(endings(run_all(batcher))) == [0, 1, 2, 3, 4, 5]


def test_a_second_plan_before_commit_is_a_bug() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2]))
    batcher.plan(0.0)
    with pytest.raises(AssertionError, match="before the last step"):
        batcher.plan(0.0)


def test_limits_that_leave_a_generating_slot_without_a_row_are_refused() -> None:
    with pytest.raises(AssertionError, match="row of every slot"):
        make_batcher(n_slots=5, n_batch=4)


# --- generating ------------------------------------------------------------------------------


def test_a_prompt_and_its_tokens_run_to_the_limit() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2, 3], max_tokens=4))
    said = run_all(batcher)
    assert text_of(said, 1) == "AAAA"
    assert endings(said) == {1: "length"}
    assert [emission.token for emission in said] == [65, 65, 65, 65, None]


def test_an_end_token_ends_and_is_not_said() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2, 3]))
    run_step(batcher)
    _, said = run_step(batcher, token=END)
    assert [emission.text for emission in said] == ["", ""]
    assert endings(said) == {1: "stop"}
    assert said[-1].sequence.n_generated == 1


def test_a_stop_string_ends_before_it_and_says_which() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2, 3], stops=("AAA", "x")))
    said = run_all(batcher)
    assert text_of(said, 1) == ""
    assert endings(said) == {1: "stop_sequence"}
    assert said[-1].sequence.detokenizer.stopped_by == "AAA"


def test_with_max_tokens_nought_the_prompt_is_evaluated_and_nothing_sampled() -> None:
    batcher = make_batcher(n_batch=8)
    batcher.submit(make_sequence(1, range(20), max_tokens=0))
    said = run_all(batcher)
    assert endings(said) == {1: "length"}
    assert said[-1].sequence.n_past == 20
    assert batcher.in_flight is None


def test_a_fault_in_one_row_ends_that_sequence_alone() -> None:
    batcher = make_batcher(n_slots=3)
    for seq_id in range(3):
        batcher.submit(make_sequence(seq_id, [1, seq_id], max_tokens=3))
    step = batcher.plan(0.0)
    assert step is not None
    fault = SampleFault("no finite logits")
    result = result_of(step, lambda seq_id: fault if seq_id == 1 else 65)
    said = [*batcher.commit(step, result, 0.0, 0.0), *run_all(batcher)]
    ended = endings(said)
    assert isinstance(ended[1], EngineFailed)
    assert (ended[0], ended[2]) == ("length", "length")
    assert text_of(said, 0) == text_of(said, 2) == "AAA"


@pytest.mark.parametrize("ending", ["stop", "length", "context", "cancelled"])
def test_what_a_stop_string_held_back_comes_with_every_ending(ending: str) -> None:
    batcher = make_batcher(n_ctx=8)
    max_tokens = 6 if ending == "length" else None
    batcher.submit(make_sequence(1, [1, 2, 3], stops=("AAAAAAAAAA",), max_tokens=max_tokens))
    said = []
    for _ in range(5):
        said += run_step(batcher)[1]
    assert text_of(said, 1) == ""
    if ending == "cancelled":
        said += batcher.end(1, "cancelled")
    else:
        said += run_step(batcher, token=END if ending == "stop" else 65)[1]
    assert endings(said) == {1: ending}
    assert text_of(said, 1) == "A" * (6 if ending in ("length", "context") else 5)


# --- ending from outside ---------------------------------------------------------------------


def test_a_cancel_during_a_step_acts_at_commit() -> None:
    batcher = make_batcher(n_batch=8)
    batcher.submit(make_sequence(1, range(40)))
    run_step(batcher)
    step = batcher.plan(0.0)
    assert step is not None
    assert batcher.end(1, "cancelled") == []
    assert batcher.end(1, "cancelled") == []
    said = batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
    assert endings(said) == {1: "cancelled"}
    assert batcher.residency.pool.slots[0].n_past == 16
    assert batcher.plan(0.0) is None


def test_a_cancel_during_the_step_that_would_have_ended_it_stays_a_cancel() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2], max_tokens=1))
    step = batcher.plan(0.0)
    assert step is not None
    batcher.end(1, "cancelled")
    said = batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
    assert (text_of(said, 1), endings(said)) == ("A", {1: "cancelled"})


def test_a_waiting_sequence_ends_at_once_even_during_a_step() -> None:
    batcher = make_batcher(n_slots=1)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [1, 2]))
    batcher.plan(0.0)
    assert endings(batcher.end(2, "cancelled")) == {2: "cancelled"}
    batcher.check()


def test_ending_what_is_not_there_says_nothing() -> None:
    assert make_batcher().end(7, "cancelled") == []


def test_a_paused_sequence_is_left_out_until_it_is_taken_up() -> None:
    batcher = make_batcher()
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, [seq_id] * 3))
    run_step(batcher)
    batcher.pause(1, paused=True)
    assert rows_of(run_step(batcher)[0]) == {2: 1}
    batcher.pause(1, paused=False)
    assert rows_of(run_step(batcher)[0]) == {1: 1, 2: 1}
