from hypothesis import given
from hypothesis import strategies as st

from runnerd.restarting import Backoff, Restart


def test_each_restart_within_the_window_waits_twice_as_long() -> None:
    backoff = Backoff(Restart(max_restarts=5, first_delay_s=1.0, max_delay_s=5.0))
    assert [backoff.next_delay_s(0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 5.0, 5.0, None]


def test_restarts_of_long_ago_do_not_count() -> None:
    backoff = Backoff(Restart(max_restarts=2, window_s=10.0, first_delay_s=1.0))
    assert [backoff.next_delay_s(now) for now in (0.0, 9.0, 9.5, 10.0, 30.0)] == [
        *(1.0, 2.0, None, 2.0, 1.0),
    ]


def test_however_many_are_allowed_the_delay_is_a_number() -> None:
    backoff = Backoff(Restart(max_restarts=3000, max_delay_s=7.0))
    assert [backoff.next_delay_s(0.0) for _ in range(3000)][-1] == 7.0


@given(
    st.integers(0, 5),
    st.floats(0.1, 100),
    st.lists(st.floats(0, 50, allow_nan=False), max_size=60),
)
def test_no_window_has_more_restarts_than_are_allowed(
    max_restarts: int, window_s: float, gaps: list[float]
) -> None:
    policy = Restart(max_restarts, window_s)
    backoff, now = Backoff(policy), 0.0
    restarts_at: list[float] = []
    for gap in gaps:
        now += gap
        delay_s = backoff.next_delay_s(now)
        if delay_s is not None:
            assert policy.first_delay_s <= delay_s <= policy.max_delay_s
            restarts_at.append(now)
        n_recent = sum(now - at < window_s for at in restarts_at)
        assert n_recent <= max_restarts
        assert delay_s is not None or n_recent == max_restarts
