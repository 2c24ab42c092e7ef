"""Where a request's time went."""

import tracemalloc
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.core.timings import Gaps, Timings


def test_times_run_from_arrival_to_start_first_token_and_end() -> None:
    timings = Timings(queued_at=10.0)
    timings.start(10.5)
    for at in (11.0, 11.1, 11.3):
        timings.token(at)
    summary = timings.summary(12.0)
    assert summary.queue_ms == pytest.approx(500)
    assert summary.ttft_ms == pytest.approx(1000)
    assert summary.itl_p50_ms == pytest.approx(100, rel=0.05)
    assert summary.itl_p95_ms == pytest.approx(200, rel=0.05)
    assert summary.total_ms == pytest.approx(2000)
    assert summary.prefill_ms == pytest.approx(500)
    assert summary.decode_ms == pytest.approx(300)


def test_a_second_start_does_not_move_the_first() -> None:
    timings = Timings(queued_at=0.0)
    timings.start(1.0)
    timings.start(2.0)
    assert timings.summary(3.0).queue_ms == 1000


def test_what_never_came_takes_until_the_end() -> None:
    summary = Timings(queued_at=1.0).summary(3.0)
    assert (summary.queue_ms, summary.ttft_ms, summary.total_ms) == (2000, 2000, 2000)
    assert (summary.itl_p50_ms, summary.itl_p95_ms) == (0, 0)
    assert (summary.prefill_ms, summary.decode_ms, summary.sampling_ms) == (0, 0, 0)


def test_a_prompt_that_is_all_has_been_prefilled_until_the_end() -> None:
    timings = Timings(queued_at=1.0)
    timings.start(2.0)
    summary = timings.summary(5.0)
    assert (summary.queue_ms, summary.prefill_ms, summary.decode_ms) == (1000, 3000, 0)


def test_the_parts_of_a_request_add_up() -> None:
    timings = Timings(queued_at=1.0)
    timings.start(1.5)
    for at in (4.0, 4.25, 6.0):
        timings.token(at)
    assert timings.queue_s(6.0) + timings.prefill_s(6.0) + timings.decode_s() == 5.0


def test_time_spent_on_sampling_is_told_in_milliseconds() -> None:
    timings = Timings(queued_at=0.0)
    timings.sampling_s += 0.25
    assert timings.summary(1.0).sampling_ms == 250


def exact(gaps_ms: list[float], share: float) -> float:
    return sorted(gaps_ms)[ceil(len(gaps_ms) * share) - 1]


@given(st.lists(st.floats(0.001, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_within_a_twentieth_of_the_smallest_gap_not_exceeded_by_its_share(
    gaps_ms: list[float], share: float
) -> None:
    gaps = Gaps()
    for gap_ms in gaps_ms:
        gaps.add(gap_ms)
    assert gaps.percentile(share) == pytest.approx(exact(gaps_ms, share), rel=0.05)


def test_the_percentile_of_nothing_is_nought() -> None:
    assert Gaps().percentile(0.5) == 0.0


def test_no_gap_is_too_short_or_too_long_to_be_counted() -> None:
    gaps = Gaps()
    for gap_ms in (0.0, -1.0, 1e12):
        gaps.add(gap_ms)
    assert gaps.percentile(0.5) < 0.01
    assert gaps.percentile(1.0) > 1e6


def test_however_many_tokens_there_are_their_gaps_take_little_memory() -> None:
    timings = Timings(queued_at=0.0)
    for number in range(20_000):
        timings.token(number * (number * 7919 % 1000) * 1e-3)
    tracemalloc.start()
    try:
        for number in range(20_000, 40_000):
            timings.token(number * (number * 7919 % 1000) * 1e-3)
        assert tracemalloc.get_traced_memory()[0] < 4096
    finally:
        tracemalloc.stop()
