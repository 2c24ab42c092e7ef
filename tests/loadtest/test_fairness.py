"""Who got how much, who had to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.comparison.exchange import Exchange
from loadtest.comparison.fairness import longest_gap_s, longest_wait_s, shares
from loadtest.rates import jain

TOKENS = st.lists(st.integers(1, 60), min_size=1, max_size=5)


def exchange(*arrivals: float, asked_at: float = 0.0, ended_at: float = 0.0) -> Exchange:
    return Exchange(
        role="stream",
        n_prompt=1,
        asked_at=asked_at,
        arrivals=[(at, 1) for at in arrivals],
        ended_at=ended_at or max(arrivals),
    )


def steps(first: float, n_steps: int, every: float = 1.0) -> Exchange:
    return exchange(*(first + step * every for step in range(n_steps)))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_the_index_is_between_one_of_n_and_one(served: list[float]) -> None:
    assert 1 / len(served) - 1e-9 <= jain(served) <= 1 + 1e-9


def test_the_index_is_one_of_equals_and_one_of_n_when_one_has_it_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([0.0, 5.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([]) == 1.0


@given(TOKENS)
def test_streams_that_advance_together_have_equal_shares_whatever_their_lengths(
    lengths: list[int],
) -> None:
    found = shares([steps(0.0, n_tokens) for n_tokens in lengths])
    assert found == pytest.approx([1.0] * len(found))


@given(st.integers(2, 10), st.integers(20, 50))
def test_a_stream_that_gets_every_other_token_has_less_of_a_share(
    n_streams: int, n_tokens: int
) -> None:
    slow = steps(0.0, n_tokens // 2, every=2.0)
    *others, last = shares([*[steps(0.0, n_tokens)] * (n_streams - 1), slow])
    assert last < 0.75 < 1.0 < min(others)


def test_streams_one_after_the_other_take_nothing_from_each_other() -> None:
    assert shares([steps(0.0, 20), steps(100.0, 20)]) == pytest.approx([1.0, 1.0])


def test_a_request_of_a_few_tokens_and_one_whose_tokens_came_together_have_no_share() -> None:
    at_once = Exchange(role="stream", n_prompt=1, asked_at=0.0, arrivals=[(1.0, 1), (1.0, 20)])
    assert shares([steps(0.0, 3), at_once]) == []


def test_waiting_for_a_slot_that_is_taken_is_no_wait_but_waiting_with_one_free_is() -> None:
    first = exchange(1.0, 2.0, ended_at=10.0)
    second = exchange(13.0, 13.5, asked_at=0.5, ended_at=13.5)
    assert longest_wait_s([first, second], n_slots=1) == pytest.approx(3.0)
    assert longest_wait_s([first, second], n_slots=2) == pytest.approx(12.5)


def test_a_long_prompt_may_take_its_time() -> None:
    first = exchange(50.0, 51.0)
    first.n_prompt = 1000
    assert longest_wait_s([first], n_slots=1) == pytest.approx(1.0)


def test_a_gap_within_a_stream_is_a_wait() -> None:
    assert longest_gap_s(exchange(1.0, 2.0, 7.0, 8.0)) == 5.0
    assert longest_wait_s([exchange(1.0, 2.0, 7.0, 8.0)], n_slots=1) == 5.0
    assert longest_gap_s(exchange(1.0)) == 0.0
