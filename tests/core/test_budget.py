"""The prefill budget, against a machine whose cost per row is known."""

import pytest

from runnerd.core.budget import (
    MIN_ROWS,
    MOST_S,
    MOST_TIMES,
    STALE_STEPS,
    TILE_ROWS,
    PrefillBudget,
)

N_BATCH = 512


def make_budget(
    *, base_s: float, row_s: float, target_itl_s: float, n_decoding: int = 8, n_steps: int = 60
) -> PrefillBudget:
    """Return a budget that has seen mixed steps on a machine of this cost."""
    budget = PrefillBudget(N_BATCH, target_itl_s)
    for _ in range(5):
        budget.observe(n_decoding, 0, base_s + n_decoding * row_s)
    for _ in range(n_steps):
        n_rows = budget.rows(n_decoding)
        budget.observe(n_decoding, n_rows, base_s + (n_decoding + n_rows) * row_s)
    return budget


def test_the_whole_batch_is_there_while_nothing_generates() -> None:
    budget = make_budget(base_s=0.01, row_s=0.01, target_itl_s=0.05)
    assert budget.rows(0) == N_BATCH


def test_before_anything_is_measured_the_rest_of_the_batch_is_there() -> None:
    assert PrefillBudget(N_BATCH, 0.05).rows(12) == N_BATCH - 12


@pytest.mark.parametrize(
    ("base_s", "row_s"), [(0.01, 0.0002), (0.01, 0.0005), (0.01, 0.001), (0.05, 0.0002)]
)
def test_a_step_with_prompt_rows_takes_the_target_once_it_is_measured(
    base_s: float, row_s: float
) -> None:
    budget = make_budget(base_s=base_s, row_s=row_s, target_itl_s=0.08)
    step_s = base_s + (8 + budget.rows(8)) * row_s
    assert step_s == pytest.approx(0.08, abs=0.004 + TILE_ROWS * row_s)
    assert step_s < 0.082


@pytest.mark.parametrize("base_s", [0.06, 0.2, 2.0])
def test_prompts_get_a_third_of_a_step_where_generating_alone_takes_the_target(
    base_s: float,
) -> None:
    budget = make_budget(base_s=base_s, row_s=0.002, target_itl_s=0.08)
    decode_s = base_s + 8 * 0.002
    assert budget.rows(8) * 0.002 == pytest.approx(decode_s / 2, rel=0.05, abs=TILE_ROWS * 0.002)


def test_the_budget_follows_when_the_machine_becomes_slower() -> None:
    budget = make_budget(base_s=0.01, row_s=0.0002, target_itl_s=0.08)
    for _ in range(40):
        n_rows = budget.rows(8)
        budget.observe(8, n_rows, 0.02 + (8 + n_rows) * 0.001)
    assert 0.02 + (8 + budget.rows(8)) * 0.001 == pytest.approx(0.08, rel=0.15)


def test_another_target_holds_for_the_next_step() -> None:
    budget = make_budget(base_s=0.01, row_s=0.0005, target_itl_s=0.08)
    budget.target_itl_s = 0.04
    assert 0.01 + (8 + budget.rows(8)) * 0.0005 == pytest.approx(0.04, rel=0.15)


def test_without_a_target_streams_keep_an_eighth_of_their_pace() -> None:
    budget = make_budget(base_s=0.002, row_s=0.0005, target_itl_s=0.0)
    alone_s = 0.002 + 8 * 0.0005
    step_s = alone_s + budget.rows(8) * 0.0005
    assert step_s == pytest.approx(MOST_TIMES * alone_s, rel=0.15)


def test_without_a_target_a_step_takes_a_quarter_of_a_second_at_most() -> None:
    budget = make_budget(base_s=0.02, row_s=0.003, target_itl_s=0.0)
    assert 0.02 + (8 + budget.rows(8)) * 0.003 == pytest.approx(MOST_S, rel=0.15)


@pytest.mark.parametrize("n_decoding", [2, 8, 16])
def test_what_other_numbers_take_that_generate_is_estimated_by_a_row(n_decoding: int) -> None:
    budget = make_budget(base_s=0.01, row_s=0.0005, target_itl_s=0.08)
    step_s = 0.01 + (n_decoding + budget.rows(n_decoding)) * 0.0005
    assert step_s == pytest.approx(0.08, rel=0.1)


def test_fewer_that_generate_take_as_long_per_row_at_least() -> None:
    budget = PrefillBudget(N_BATCH, target_itl_s=0.1)
    budget.observe(8, 0, 0.04)
    budget.observe(0, 100, 1.0)
    assert budget.rows(4) == MIN_ROWS  # 0.08 s are left, rows take 0.01


def test_rows_along_a_prompt_that_cost_more_and_more_keep_to_the_target() -> None:
    budget = make_budget(base_s=0.0, row_s=0.002, target_itl_s=0.25, n_decoding=4)
    n_past, steps = 0, []
    while n_past < 3000:
        n_rows = budget.rows(4)
        step_s = 0.008 + n_rows * (0.002 + 8e-7 * n_past)
        budget.observe(4, n_rows, step_s)
        n_past += n_rows
        steps.append(step_s)
    assert max(steps) < 0.26


def test_a_step_without_prompts_is_due_after_many_with_some() -> None:
    budget = PrefillBudget(N_BATCH, 0.1)
    for _ in range(STALE_STEPS):
        assert not budget.is_stale
        budget.observe(2, 50, 0.1)
    assert budget.is_stale
    budget.observe(2, 0, 0.01)
    assert not budget.is_stale


def test_prompts_alone_make_no_other_step_due() -> None:
    budget = PrefillBudget(N_BATCH, 0.1)
    for _ in range(2 * STALE_STEPS):
        budget.observe(0, 50, 0.1)
    assert not budget.is_stale


def test_streams_that_have_become_slower_behind_prompts_are_found_out() -> None:
    budget = make_budget(base_s=0.0, row_s=0.004, target_itl_s=0.0, n_decoding=3)
    for _ in range(8 * STALE_STEPS):
        n_rows = 0 if budget.is_stale else budget.rows(3)
        budget.observe(3, n_rows, 0.04 + n_rows * 0.004)
    assert 0.04 + budget.rows(3) * 0.004 == pytest.approx(MOST_S, rel=0.2)


def test_prompt_rows_come_in_whole_tiles() -> None:
    budget = make_budget(base_s=0.01, row_s=0.0007, target_itl_s=0.08)
    for target_ms in range(40, 200, 7):
        budget.target_itl_s = target_ms / 1e3
        assert budget.rows(8) % TILE_ROWS == 0


def test_one_slow_step_does_not_stop_prompts_for_long() -> None:
    budget = make_budget(base_s=0.01, row_s=0.0002, target_itl_s=0.08)
    n_before = budget.rows(8)
    budget.observe(8, n_before, 2.0)
    for _ in range(20):
        n_rows = budget.rows(8)
        budget.observe(8, n_rows, 0.01 + (8 + n_rows) * 0.0002)
    assert budget.rows(8) > n_before * 0.8


def test_the_slowest_machine_still_gets_on_with_prompts() -> None:
    budget = make_budget(base_s=0.1, row_s=0.5, target_itl_s=0.05)
    assert budget.rows(8) == MIN_ROWS


def test_a_full_batch_leaves_no_more_than_its_room() -> None:
    budget = make_budget(base_s=1.0, row_s=0.5, target_itl_s=0.05)
    assert budget.rows(N_BATCH - 3) == 3
    assert budget.rows(N_BATCH) == 0


def test_rows_that_cost_nothing_fill_the_batch() -> None:
    budget = make_budget(base_s=0.0, row_s=0.0, target_itl_s=0.05)
    assert budget.rows(8) == N_BATCH - 8


def test_rows_of_a_step_quicker_than_the_last_without_any_cost_a_tenth_of_an_average_row() -> None:
    budget = PrefillBudget(N_BATCH, target_itl_s=0.05)
    budget.observe(8, 0, 0.04)
    budget.observe(8, 10, 0.02)
    n_rows = int(0.02 / (0.1 * 0.02 / 18))
    assert budget.rows(8) == n_rows - n_rows % TILE_ROWS


def test_a_quick_step_opens_no_step_that_takes_far_more_than_the_target() -> None:
    budget = make_budget(base_s=0.01, row_s=0.002, target_itl_s=0.08)
    for _ in range(3):
        n_rows = budget.rows(8)
        budget.observe(8, n_rows, 0.02)  # less than generating alone has taken so far
    assert 0.01 + (8 + budget.rows(8)) * 0.002 < 0.2


@pytest.mark.parametrize(
    ("row_s", "target_itl_s", "n_rows"),
    [
        (0.006, 0.0, 64),  # 33 rows would fit
        (0.002, 0.0, 96),  # 99 fit
        (0.010, 0.0, 20),  # thrice that is less than a tile
        (0.006, 0.25, 24),  # 33 fit: who names a target is not pushed beyond it
    ],
)
def test_a_tile_is_filled_where_that_is_no_more_than_thrice_what_fits(
    row_s: float, target_itl_s: float, n_rows: int
) -> None:
    budget = PrefillBudget(N_BATCH, target_itl_s, n_tile=64)
    for _ in range(60):
        budget.observe(1, 0, 0.05)
        budget.observe(1, 64, 0.05 + 64 * row_s)
    assert budget.rows(1) == n_rows
