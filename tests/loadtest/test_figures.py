"""What exchanges come down to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.comparison.exchange import Exchange
from loadtest.comparison.figures import KNOWN, all_itls_ms, known, measure_exchanges, ttfts_s

ARRIVALS = st.lists(st.tuples(st.floats(0.001, 10.0), st.integers(1, 4)), min_size=0, max_size=20)


def exchange(
    role: str, gaps: list[tuple[float, int]], asked_at: float = 0.0, n_evaluated: int | None = 5
) -> Exchange:
    """Return a request whose tokens come after gaps."""
    at = asked_at
    arrivals = []
    for gap, n_tokens in gaps:
        at += gap
        arrivals.append((at, n_tokens))
    return Exchange(
        role=role,
        n_prompt=10,
        asked_at=asked_at,
        arrivals=arrivals,
        ended_at=at,
        n_evaluated=n_evaluated,
        ended="length",
    )


@given(st.lists(st.tuples(st.sampled_from(["a", "b.c"]), ARRIVALS), max_size=6))
def test_every_figure_is_known_and_no_request_breaks_one(
    seen: list[tuple[str, list[tuple[float, int]]]],
) -> None:
    figures = measure_exchanges([exchange(role, gaps) for role, gaps in seen], n_slots=2)
    assert {name.rpartition(".")[2] for name in figures} <= set(KNOWN)
    assert all(value >= 0 for value in figures.values())


@given(st.lists(ARRIVALS, min_size=1, max_size=5))
def test_every_token_is_either_a_first_one_or_has_a_gap_before_it(
    seen: list[list[tuple[float, int]]],
) -> None:
    exchanges = [exchange("stream", gaps) for gaps in seen]
    n_generated = sum(each.n_generated for each in exchanges)
    assert len(ttfts_s(exchanges)) + len(all_itls_ms(exchanges)) == n_generated


def test_the_rate_is_from_the_first_request_to_the_last_token() -> None:
    early = exchange("stream", [(1.0, 1), (1.0, 2)])
    late = exchange("stream", [(1.0, 1), (1.0, 1)], asked_at=3.0)
    figures = measure_exchanges([early, late], n_slots=2)
    assert figures["tokens_per_s"] == pytest.approx(1.0)
    assert figures["all_started_s"] == pytest.approx(4.0)
    assert "decode_tokens_per_s" not in figures, "they have never generated together"


def test_each_role_has_figures_of_its_own() -> None:
    figures = measure_exchanges(
        [exchange("long", [(9.0, 1)]), exchange("short", [(0.5, 1), (0.25, 1)], n_evaluated=7)],
        n_slots=2,
    )
    assert (figures["long.ttft_max_s"], figures["short.ttft_max_s"]) == (9.0, 0.5)
    assert (figures["short.n_evaluated"], figures["n_evaluated"]) == (7, 12)
    assert "long.longest_gap_s" not in figures


def test_one_request_of_unknown_tokens_makes_their_sum_unknown() -> None:
    figures = measure_exchanges(
        [
            exchange("stream", [(1.0, 1)], n_evaluated=None),
            exchange("short", [(1.0, 1)], n_evaluated=0),
        ],
        n_slots=2,
    )
    assert not {"n_evaluated", "stream.n_evaluated"} & set(figures)
    assert figures["short.n_evaluated"] == 0


def test_where_all_have_one_role_nothing_is_said_twice() -> None:
    figures = measure_exchanges([exchange("stream", [(1.0, 1), (1.0, 1)])] * 2, n_slots=2)
    assert not [name for name in figures if "." in name]


def test_the_wait_is_counted_in_median_steps_times_slots() -> None:
    figures = measure_exchanges([exchange("r", [(0.5, 1), *[(0.5, 1)] * 9, (8.0, 1)])], n_slots=4)
    assert figures["longest_wait"] == pytest.approx(8.0 / (0.5 * 4))


def test_what_got_no_token_has_only_counts() -> None:
    assert measure_exchanges([exchange("r", [])], n_slots=1) == {
        "n_prompt": 10,
        "n_evaluated": 5,
        "n_generated": 0,
    }


def test_a_figure_is_known_with_and_without_a_role() -> None:
    assert known("short.ttft_p50_s") is known("ttft_p50_s")
    assert known("turn 2.ttft_p50_s").unit == "s"
