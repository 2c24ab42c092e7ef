"""Counters and rates, from instants passed in."""

from runnerd.core.sequence import FinishReason
from runnerd.errors import EngineFailed, QueueTimeout, RequestError
from runnerd.figures import RATE_WINDOW_S, Figures
from tests.helpers import make_sequence


def test_uptime_runs_from_the_start() -> None:
    assert Figures(started_at=100.0).uptime_s(103.5) == 3.5


def test_the_rate_is_of_the_tokens_after_the_first_step_in_the_window() -> None:
    figures = Figures(started_at=0.0)
    assert figures.tokens_per_s(0.0) == 0.0
    for now in (1.0, 2.0, 3.0):
        figures.count_step(8, now, 0.5)
    assert figures.tokens_per_s(3.0) == 8.0
    assert (figures.n_steps, figures.step_s) == (3, 0.5)


def test_the_rate_forgets_what_is_long_ago() -> None:
    figures = Figures(started_at=0.0)
    figures.count_step(1000, 1.0, 0.5)
    for now in (20.0, 21.0):
        figures.count_step(8, now, 0.5)
    assert figures.tokens_per_s(21.0) == 8.0
    assert figures.tokens_per_s(21.0 + 2 * RATE_WINDOW_S) == 0.0


def test_an_end_adds_what_the_sequence_has_cost() -> None:
    figures = Figures(started_at=0.0)
    for _ in range(2):
        sequence = make_sequence(1, [1, 2, 3], queued_at=1.0)
        sequence.timings.start(2.0)
        for at in (5.0, 6.0):
            sequence.timings.token(at)
        sequence.timings.sampling_s = 0.5
        sequence.n_cached, sequence.n_suspended, sequence.n_shifts = 2, 1, 3
        figures.count_end(sequence, "length", 7.0)
    assert (figures.queue_s, figures.prefill_s, figures.decode_s) == (2.0, 6.0, 2.0)
    assert figures.sampling_s == 1.0
    assert (figures.n_cached_tokens, figures.n_suspended, figures.n_shifts) == (4, 2, 6)
    assert (figures.n_cancelled, figures.n_timed_out) == (0, 0)


def test_cancels_and_timeouts_are_counted_apart() -> None:
    figures = Figures(started_at=0.0)
    sequence = make_sequence(1, [1])
    endings: list[FinishReason | RequestError] = ["cancelled", "timeout", "stop"]
    endings += [QueueTimeout("waited"), EngineFailed("no")]
    for ending in endings:
        figures.count_end(sequence, ending, 1.0)
    assert (figures.n_cancelled, figures.n_timed_out) == (1, 2)


def test_completions_that_were_not_begun_count_each() -> None:
    figures = Figures(started_at=0.0)
    figures.count_unbegun(3, "cancelled", 2.0)
    figures.count_unbegun(2, "timeout", 1.0)
    assert (figures.n_cancelled, figures.n_timed_out, figures.queue_s) == (3, 2, 8.0)
