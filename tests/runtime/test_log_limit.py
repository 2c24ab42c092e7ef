"""How much is let through, by a clock of the test's own."""

import pytest

from runnerd.log_limit import ALL_BYTES, LogLimits, Suppressed


def let_through(
    limits: LogLimits, event: str, *, level: str = "warning", n_bytes: int = 200, per_s: int = 1000
) -> list[int]:
    """Log at a steady rate for a minute; return how many lines got through in each second."""
    counts = []
    for second in range(60):
        counts.append(0)
        for i in range(per_s):
            if limits.admits(level, event, 1000 + second + i / per_s):
                limits.charge(level, event, n_bytes)
                counts[-1] += 1
    return counts


def test_a_burst_goes_through_and_then_a_trickle() -> None:
    counts = let_through(LogLimits(), "client.complained")
    assert 20 <= counts[0] <= 31
    assert all(9 <= count <= 11 for count in counts[1:])


def test_what_stays_below_the_rate_goes_through_whole() -> None:
    limits = LogLimits()
    assert sum(let_through(limits, "client.complained", per_s=8)) == 60 * 8
    assert limits.take_suppressed(5000) == []


def test_requests_that_end_well_get_a_generous_rate() -> None:
    counts = let_through(LogLimits(), "request.finished", level="info")
    assert counts[0] <= 91
    assert all(69 <= count <= 71 for count in counts[1:])


def test_what_happens_once_in_a_life_is_never_held_back() -> None:
    limits = LogLimits()
    let_through(limits, "a.b")
    assert sum(let_through(limits, "daemon.draining", per_s=100)) == 60 * 100


def test_long_lines_cost_more() -> None:
    counts = let_through(LogLimits(), "session.crashed", level="error", n_bytes=8000, per_s=100)
    assert sum(counts) * 8000 < 60 * 10 * 500 + 20_000


def test_one_kind_of_trouble_does_not_hide_another() -> None:
    limits = LogLimits()
    let_through(limits, "a.b")
    assert limits.admits("warning", "c.d", 1060.0)


def test_all_kinds_of_trouble_together_stay_below_a_megabyte_a_minute() -> None:
    limits = LogLimits()
    n_bytes, most = 0, 0
    for second in range(60):
        n_lines = 0
        for i in range(1000):
            event, now = f"a.b{i % 40}", 1000 + second + i / 1000
            if limits.admits("warning", event, now):
                limits.charge("warning", event, 200)
                n_lines += 1
        n_bytes += 200 * n_lines
        most = max(most, n_lines)
    assert most < 200
    assert n_bytes <= ALL_BYTES[0] + 60 * ALL_BYTES[1] + 200


def test_what_was_held_back_is_counted_and_told_once() -> None:
    limits = LogLimits()
    n_logged = sum(let_through(limits, "a.b", per_s=100))
    (told,) = limits.take_suppressed(1061.0)
    assert told == Suppressed("warning", "a.b", 6000 - n_logged)
    assert limits.take_suppressed(2000.0) == []


@pytest.mark.parametrize("at_once", [False, True])
def test_a_count_is_told_after_a_second_or_before_something_grave(*, at_once: bool) -> None:
    limits = LogLimits()
    for _ in range(30):
        limits.admits("info", "a.b", 5.0)
        limits.charge("info", "a.b", 100)
    assert len(limits.take_suppressed(5.9, at_once=at_once)) == at_once
    assert len(limits.take_suppressed(6.1)) == (not at_once)


def test_debug_lines_do_not_use_up_the_allowance_of_others() -> None:
    limits = LogLimits()
    let_through(limits, "a.b", level="debug")
    assert limits.admits("warning", "a.b", 1060.0)
