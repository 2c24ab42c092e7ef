"""Figures from records whose every instant is known."""

import pytest

from loadtest.streams.measure import Figures, measure, report
from loadtest.streams.recording import Load, Round, StreamRecord


def make_round(*streams: StreamRecord, n_prompt: int = 10, n_steps: int = 4) -> Round:
    return Round(list(streams), n_prompt, n_steps)


def make_stream(*arrivals: float, asked_at: float = 0.0, n_cached: int = 0) -> StreamRecord:
    """Make a stream that gets one token at each instant."""
    return StreamRecord(asked_at, [(at, 1) for at in arrivals], len(arrivals), n_cached)


def test_tokens_per_second_count_from_the_first_request_to_the_last_token() -> None:
    seen = make_round(make_stream(1.0, 2.0, asked_at=0.5), make_stream(2.0, 4.5, asked_at=1.0))
    assert measure(seen).tokens_per_s == 4 / 4.0


def test_the_decode_rate_is_that_of_the_window_in_which_every_stream_generates() -> None:
    early = make_stream(0.0, 1.0, 2.0, 3.0, 4.0)
    late = make_stream(2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
    assert measure(make_round(early, late)).decode_tokens_per_s == pytest.approx(1.0 + 2.0)


def test_tokens_of_one_step_that_arrive_one_after_another_do_not_bend_the_decode_rate() -> None:
    streams = [make_stream(*(step + 0.01 * n for step in range(5))) for n in range(8)]
    assert measure(make_round(*streams)).decode_tokens_per_s == pytest.approx(8.0)


def test_without_an_instant_at_which_every_stream_generates_there_is_no_decode_rate() -> None:
    seen = make_round(make_stream(0.0, 1.0), make_stream(2.0, 3.0))
    assert measure(seen).decode_tokens_per_s == 0.0


def test_prompt_tokens_per_second_leave_out_what_was_cached() -> None:
    seen = make_round(make_stream(1.0, n_cached=4), make_stream(2.0), n_prompt=10)
    assert measure(seen).prefill_tokens_per_s == 16 / 2.0


def test_ttft_counts_from_the_request_of_its_own_stream() -> None:
    seen = make_round(make_stream(1.0), make_stream(1.5, asked_at=1.25))
    figures = measure(seen)
    assert (figures.ttft_p50_ms, figures.ttft_p95_ms) == (250.0, 1000.0)


def test_itl_percentiles_are_those_of_all_gaps() -> None:
    instants = [0.0]
    for gap_ms in range(1, 101):
        instants.append(instants[-1] + gap_ms / 1e3)
    figures = measure(make_round(make_stream(*instants)))
    assert figures.itl_p50_ms == pytest.approx(50.0)
    assert figures.itl_p95_ms == pytest.approx(95.0)
    assert figures.itl_p99_ms == pytest.approx(99.0)
    assert figures.itl_max_ms == pytest.approx(100.0)


def test_tokens_that_arrive_together_have_no_gap_between_them() -> None:
    stream = StreamRecord(0.0, [(1.0, 1), (1.5, 3)], n_deltas=2)
    figures = measure(make_round(stream))
    assert (figures.itl_p50_ms, figures.itl_max_ms) == (0.0, 500.0)
    assert (figures.tokens_per_s, figures.deltas_per_s) == (4 / 1.5, 2 / 1.5)


def test_the_time_per_step_is_that_of_the_whole_round() -> None:
    assert measure(make_round(make_stream(1.0, 2.0), n_steps=4)).step_ms == 500.0


def test_a_round_in_which_nothing_came_has_no_figures() -> None:
    assert measure(make_round(make_stream())) == Figures(*[0.0] * 12)


def test_a_report_gives_median_least_and_greatest_of_its_rounds() -> None:
    rounds = [make_round(make_stream(1.0, end)) for end in (2.0, 4.0, 5.0)]
    load = Load(n_streams=1, n_prompt=10, max_tokens=2, n_rounds=3)
    summed = report(load, rounds, resident_bytes=0)
    assert summed.n_generated == 6
    assert summed.median.tokens_per_s == 0.5
    assert (summed.least.tokens_per_s, summed.greatest.tokens_per_s) == (0.4, 1.0)
