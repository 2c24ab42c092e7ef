"""Which rows go into a step, and what happens where the context ends."""

import pytest

from runnerd.core.budget import MIN_ROWS
from runnerd.core.emission import Emission
from tests.helpers import (
    Image,
    endings,
    make_batcher,
    make_prompt,
    make_sequence,
    rows_of,
    run_all,
    run_step,
    text_of,
)

# --- the batch rule --------------------------------------------------------------------------


def test_generating_rows_come_first_in_slot_order() -> None:
    batcher = make_batcher(n_slots=4, n_batch=16)
    for seq_id in range(3):
        batcher.submit(make_sequence(seq_id, [seq_id] * 3))
    run_step(batcher)
    batcher.submit(make_sequence(3, range(60)))
    for _ in range(3):
        step, _ = run_step(batcher)
        assert [span.seq_id for span in step.batches[0].spans] == [0, 1, 2, 3]
        assert step.n_rows == 16


@pytest.mark.parametrize("long_first", [True, False])
def test_a_short_prompt_is_not_stuck_behind_a_long_one(long_first: bool) -> None:
    batcher = make_batcher(n_slots=3, n_ctx=1000, n_batch=64)
    prompts = [range(900), range(900, 920)]
    for seq_id, prompt in enumerate(prompts if long_first else prompts[::-1]):
        batcher.submit(make_sequence(seq_id, prompt, limits=batcher.limits))
    _, said = run_step(batcher)
    assert [emission.sequence.seq_id for emission in said] == [1 if long_first else 0]


def test_newcomers_do_not_pass_one_whose_prompt_is_long() -> None:
    batcher = make_batcher(n_slots=4, n_ctx=500, n_batch=64, target_itl_s=0.001)
    batcher.submit(make_sequence(1, [7]))
    for _ in range(3):
        run_step(batcher, elapsed_s=1.0)
    batcher.submit(make_sequence(2, range(300), limits=batcher.limits))
    run_step(batcher, elapsed_s=1.0)
    n_served = 0
    for seq_id in range(3, 33):
        batcher.submit(make_sequence(seq_id, [seq_id] * MIN_ROWS, max_tokens=0))
        step, _ = run_step(batcher, elapsed_s=1.0)
        n_served += 2 in rows_of(step)
    # Two slots are left for newcomers, and each step has rows for one prompt.
    assert n_served >= 10


def test_while_something_generates_prompt_rows_are_few_on_a_slow_machine() -> None:
    batcher = make_batcher(n_slots=2, n_ctx=500, n_batch=256)
    batcher.submit(make_sequence(1, [7]))
    run_step(batcher, elapsed_s=0.05)
    run_step(batcher, elapsed_s=0.05)
    batcher.submit(make_sequence(2, range(400), limits=batcher.limits))
    run_step(batcher, elapsed_s=5.0)
    assert rows_of(run_step(batcher, elapsed_s=1.0)[0]) == {1: 1, 2: MIN_ROWS}


def test_an_image_that_generating_rows_leave_no_room_for_goes_alone_every_other_step() -> None:
    batcher = make_batcher(n_slots=4, n_batch=8)
    for seq_id in range(2):
        batcher.submit(make_sequence(seq_id, [seq_id]))
    run_step(batcher)
    for seq_id in (2, 3):
        images = [Image(10 * seq_id + n, 8) for n in range(3)]
        batcher.submit(make_sequence(seq_id, make_prompt(*images)))
    served = [rows_of(run_step(batcher)[0]) for _ in range(12)]
    assert served[:12:2] == [{2: 8}, {3: 8}] * 3
    assert all(set(counts) >= {0, 1} for counts in served[1::2])


# --- the context limit -----------------------------------------------------------------------


def test_a_prompt_of_exactly_the_context_gives_one_token() -> None:
    batcher = make_batcher(n_ctx=16)
    batcher.submit(make_sequence(1, range(16), limits=batcher.limits))
    said = run_all(batcher)
    assert text_of(said, 1) == "A"
    assert endings(said) == {1: "context"}


def test_every_sampled_token_is_delivered_at_the_limit() -> None:
    batcher = make_batcher(n_ctx=16)
    batcher.submit(make_sequence(1, range(10), limits=batcher.limits))
    said = run_all(batcher)
    assert text_of(said, 1) == "A" * 7
    assert said[-1].sequence.n_past == 16


def test_the_last_token_allowed_ends_by_length_even_at_the_limit() -> None:
    batcher = make_batcher(n_ctx=16)
    batcher.submit(make_sequence(1, range(10), limits=batcher.limits, max_tokens=7))
    assert endings(run_all(batcher)) == {1: "length"}


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize(
    ("n_prompt", "n_keep", "n_shifts", "n_dropped"),
    [
        (14, 0, 5, 8),
        (14, 1, 5, 7),
        (12, -1, 16, 2),
        (14, 14, 33, 1),
        (14, 15, 33, 1),
        (14, 16, 33, 1),
        (14, 2**31 - 1, 33, 1),
    ],
)
def test_a_shift_goes_on_with_what_is_left(
    can_shift: bool, n_prompt: int, n_keep: int, n_shifts: int, n_dropped: int
) -> None:
    batcher = make_batcher(n_ctx=16, can_shift=can_shift)
    prompt = range(n_prompt)
    limits = batcher.limits
    batcher.submit(
        make_sequence(1, prompt, limits=limits, max_tokens=36, n_keep=n_keep, shift=True)
    )
    said = run_all(batcher)
    sequence = said[-1].sequence
    assert endings(said) == {1: "length"}
    assert text_of(said, 1) == "A" * 36
    assert (sequence.n_shifts, sequence.n_shifted) == (n_shifts, n_shifts * n_dropped)
    assert sequence.inputs[: sequence.n_keep] == [*prompt][: sequence.n_keep]
    assert len(sequence.inputs) == n_prompt + 36 - sequence.n_shifted


@pytest.mark.parametrize("n_keep", [-2, -1, 0, 1, 28, 30, 31, 32, 33, 2**31 - 1, 2**63])
def test_no_n_keep_makes_a_shift_that_frees_nothing(n_keep: int) -> None:
    batcher = make_batcher(n_ctx=32)
    prompt = range(28)
    batcher.submit(
        make_sequence(1, prompt, limits=batcher.limits, max_tokens=50, n_keep=n_keep, shift=True)
    )
    said = run_all(batcher)
    sequence = said[-1].sequence
    assert text_of(said, 1) == "A" * 50
    assert endings(said) == {1: "length"}
    assert 0 < sequence.n_shifts <= sequence.n_shifted
    assert sequence.n_shifts <= 50


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("n_others", [0, 3])
def test_after_three_shifts_the_kept_part_and_the_end_are_there_in_order(
    can_shift: bool, n_others: int
) -> None:
    batcher = make_batcher(n_slots=4, n_ctx=32, can_shift=can_shift)
    prompt = range(1, 21)
    limits = batcher.limits
    batcher.submit(make_sequence(0, prompt, limits=limits, max_tokens=50, n_keep=6, shift=True))
    for seq_id in range(1, 1 + n_others):
        batcher.submit(make_sequence(seq_id, [seq_id] * 9, limits=limits, max_tokens=30))
    sequence = batcher.waiting.first
    said: list[Emission] = []
    for token in range(100, 1000):
        if not batcher.seq_ids:
            break
        said += run_step(batcher, token=token)[1]
    generated = [e.token for e in said if e.sequence is sequence and e.token is not None]
    assert sequence.n_shifts == 3
    assert sequence.inputs[:6] == [*prompt][:6]
    everything = [*prompt, *generated]
    n_left = len(everything) - sequence.n_shifted
    assert sequence.inputs == [*everything[:6], *everything[6 - n_left :]]
