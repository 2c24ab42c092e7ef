"""Counters and rates, from instants passed in."""

from runnerd.figures import RATE_WINDOW_S, Figures


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
