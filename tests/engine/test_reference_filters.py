"""The filters, DRY and mirostat on rows small enough to reckon by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runnerd.core.batch import Logprobs, SampleFault, Sampling
from runnerd.engine.reference.filters import Candidates, filtered, tempered
from runnerd.engine.reference.mirostat import Mirostat
from runnerd.engine.reference.penalties import penalise_loops
from runnerd.engine.reference.sampling import Sampler

Floats = NDArray[np.float64]
NEVER = -math.inf


def log(*probabilities: float) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities, dtype=np.float64))


def kept(sampling: Sampling, row: Floats, chance: float = 0.0) -> list[int]:
    """Return the tokens that may still be drawn."""
    candidates = filtered(Candidates.of(row), sampling, chance)
    tokens: list[int] = candidates.tokens[candidates.shares > 0].tolist()
    return tokens


ROW = log(0.1, 0.4, 0.2, 0.3)
EVEN_AND_SURE = log(0.7, 0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("sampling", "row", "expected"),
    [
        (Sampling(top_n_sigma=0.1), ROW, [1]),
        (Sampling(top_n_sigma=1.0), ROW, [1, 3]),
        (Sampling(top_n_sigma=100.0), ROW, [1, 3, 2, 0]),
        (Sampling(top_n_sigma=3.0), log(0.6, 0.0, 0.4), [0, 2]),
        (Sampling(typical_p=0.0), ROW, [3]),
        (Sampling(typical_p=0.45), ROW, [3, 2]),
        (Sampling(typical_p=0.5), EVEN_AND_SURE, [0]),
        (Sampling(typical_p=0.95), log(0.6, 0.4, 0.0), [0, 1]),
        (Sampling(top_k=3, typical_p=0.5), ROW, [1, 3]),
        (Sampling(top_n_sigma=1.0, typical_p=0.5), ROW, [1]),
        (Sampling(top_k=2, min_p=0.8), ROW, [1]),
        (Sampling(top_p=0.6, min_p=0.7), ROW, [1, 3]),
        (Sampling(xtc_probability=1.0, xtc_threshold=0.25), ROW, [3, 2, 0]),
        (Sampling(xtc_probability=1.0, xtc_threshold=0.15), ROW, [2, 0]),
        (Sampling(xtc_probability=1.0, xtc_threshold=0.5), ROW, [1, 3, 2, 0]),
        (Sampling(xtc_probability=1.0, xtc_threshold=0.0), ROW, [0]),
        (Sampling(xtc_probability=1.0, xtc_threshold=0.51), log(0.6, 0.4), [0, 1]),
        (Sampling(xtc_probability=1.0, xtc_threshold=0.2, top_k=1), ROW, [1]),
        (Sampling(xtc_threshold=0.2), ROW, [1, 3, 2, 0]),
    ],
)
def test_a_filter_keeps_what_it_should(
    sampling: Sampling, row: Floats, expected: list[int]
) -> None:
    assert kept(sampling, row) == expected


@pytest.mark.parametrize(("chance", "acts"), [(0.0, True), (0.3, True), (0.31, False)])
def test_xtc_acts_as_often_as_asked(chance: float, acts: bool) -> None:
    sampling = Sampling(xtc_probability=0.3, xtc_threshold=0.15)
    assert (kept(sampling, ROW, chance) == [2, 0]) == acts


@pytest.mark.parametrize(
    ("spread", "exponent", "expected"),
    [(0.0, 1.0, 1.0), (0.5, 1.0, 0.5 + 1.0), (0.5, 2.0, 0.5 + 1.0), (2.0, 1.0, 3.0)],
)
def test_a_row_of_equals_has_the_highest_temperature(
    spread: float, exponent: float, expected: float
) -> None:
    sampling = Sampling(temperature=1.0, dynatemp_range=spread, dynatemp_exponent=exponent)
    candidates = tempered(Candidates(np.array([0, 1]), np.array([0.0, 0.0])), sampling)
    assert candidates.shares.tolist() == [0.5, 0.5]
    certain = tempered(Candidates(np.array([0, 1]), np.array([0.0, -1e-9])), sampling)
    assert certain.logits[1] == pytest.approx(-1e-9 / expected)


def test_a_sure_row_has_the_lowest_temperature() -> None:
    sampling = Sampling(temperature=1.0, dynatemp_range=0.5)
    candidates = tempered(Candidates(np.array([0, 1]), np.array([0.0, -100.0])), sampling)
    assert candidates.logits[1] == pytest.approx(-100 / 0.5)


def test_where_the_lowest_temperature_is_0_a_sure_row_has_one_choice() -> None:
    sampling = Sampling(temperature=0.5, dynatemp_range=1.0)
    candidates = tempered(Candidates(np.array([3, 1]), np.array([0.0, NEVER])), sampling)
    assert candidates.tokens.tolist() == [3]


# --- DRY -----------------------------------------------------------------------------------


def dry(recent: str, **fields: float | int | tuple[str, ...]) -> dict[str, float]:
    """Return what DRY takes from each letter."""
    logits = np.zeros(256)
    options = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_breakers": (), **fields}
    penalise_loops(logits, Sampling(**options), list(recent.encode()))  # type: ignore[arg-type]
    return {chr(token): -float(logits[token]) for token in np.flatnonzero(logits)}


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        ("", {}),
        ("ab", {}),
        ("abcab", {"c": 1.0}),
        ("xabcab", {"c": 1.0}),
        ("abcabc", {"a": 2.0}),
        ("abcabcabc", {"a": 16.0}),
        ("abxcabyab", {"x": 1.0, "y": 1.0}),
        ("dabxabydab", {"x": 2.0, "y": 1.0}),
        ("aaaa", {"a": 2.0}),
    ],
)
def test_dry_takes_the_more_the_longer_a_repetition_is(
    recent: str, expected: dict[str, float]
) -> None:
    assert dry(recent) == expected


def test_dry_takes_no_more_than_a_float_holds() -> None:
    assert dry("a" * 400, dry_base=4.0)["a"] == 4.0**63
    assert dry("a" * 400, dry_base=1.0)["a"] == 1.0


@pytest.mark.parametrize(
    ("breakers", "expected"),
    [
        ((), {"c": 4.0}),
        (("z",), {"c": 4.0}),
        (("b",), {}),
        (("x",), {"c": 1.0}),
        (("xa",), {}),
        (("yxa", "x"), {"c": 1.0}),
        (("c",), {}),
        (("",), {"c": 4.0}),
    ],
)
def test_dry_looks_back_to_the_last_breaker(
    breakers: tuple[str, ...], expected: dict[str, float]
) -> None:
    recent = "kxabc" if breakers == ("c",) else "kxabckxab"
    assert dry(recent, dry_breakers=breakers) == expected


@given(st.text("ab", max_size=24), st.integers(1, 4))
def test_dry_finds_what_a_search_of_all_places_finds(recent: str, allowed: int) -> None:
    expected: dict[str, float] = {}
    for place, follows in enumerate(recent):
        n_equal = 0
        while n_equal < place and recent[place - 1 - n_equal] == recent[-1 - n_equal]:
            n_equal += 1
        if n_equal >= allowed:
            expected[follows] = max(expected.get(follows, 0.0), 2.0 ** (n_equal - allowed))
    assert dry(recent, dry_allowed_length=allowed) == expected


# --- mirostat ------------------------------------------------------------------------------


@pytest.mark.parametrize(("tau", "n_choices"), [(0.0, 1), (0.7, 2), (1.2, 3), (5.0, 4)])
def test_mirostat_2_cuts_what_would_surprise_too_much(tau: float, n_choices: int) -> None:
    row = log(0.4, 0.39, 0.2, 0.01)
    drawn = {
        Mirostat(Sampling(mirostat=2, mirostat_tau=tau), 4).pick(Candidates.of(row), point / 200)
        for point in range(200)
    }
    assert drawn == set(range(n_choices))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_steers_the_mean_surprise_to_its_target(version: int) -> None:
    ranks = np.arange(1, 501)
    row = -np.log(ranks) * 1.1
    shares = np.exp(row) / np.exp(row).sum()
    sampler = Sampler(
        Sampling(temperature=1.0, mirostat=version, mirostat_tau=3.0, seed=1), n_vocab=len(row)
    )
    drawn = [sampler.sample(row) for _ in range(1500)]
    tokens = [token for token in drawn[300:] if isinstance(token, int)]
    # Of what is kept, as mirostat reckons: the kept share is not known here, so a wide margin.
    assert 2.0 < float(np.mean(-np.log2(shares[tokens]))) < 4.5


@pytest.mark.parametrize("row", [log(1.0), log(1.0, 0.0), log(0.5, 0.5), log(0.25, 0.25, 0.5)])
@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_picks_a_token_from_odd_rows_too(version: int, row: Floats) -> None:
    sampler = Sampler(Sampling(temperature=1.0, mirostat=version), n_vocab=len(row))
    for _ in range(20):
        token = sampler.sample(row)
        assert isinstance(token, int)
        assert row[token] > NEVER


# --- bias, bans and logprobs ---------------------------------------------------------------


def test_a_bias_is_added_and_minus_infinity_bans() -> None:
    row = log(0.5, 0.3, 0.2)
    assert Sampler(Sampling(logit_bias=((2, 1.0),))).sample(row) == 2
    assert Sampler(Sampling(logit_bias=((0, NEVER),))).sample(row) == 1


def test_a_bias_comes_before_the_penalties() -> None:
    # A logit of 1 - 2 is negative, so the penalty multiplies it.
    sampling = Sampling(logit_bias=((0, -2.0),), repeat_penalty=2.0)
    assert Sampler(sampling, [0]).sample(np.array([1.0, -1.5])) == 1
    assert Sampler(sampling, [0]).sample(np.array([1.0, -2.5])) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_token_left_is_a_fault_and_costs_no_draw(temperature: float) -> None:
    row = log(0.5, 0.5)
    bans = ((0, NEVER),)
    sampler = Sampler(Sampling(temperature=temperature, seed=4, logit_bias=bans))
    fresh = Sampler(Sampling(temperature=temperature, seed=4, logit_bias=bans))
    assert isinstance(sampler.sample(np.array([1.0, NEVER])), SampleFault)
    assert sampler.sample(row) == fresh.sample(row)


def test_logprobs_are_of_the_raw_row() -> None:
    sampling = Sampling(logit_bias=((0, NEVER),), temperature=9.0, top_k=1, n_logprobs=2)
    told = Sampler(sampling).sample(log(0.5, 0.3, 0.2) + 7)
    assert isinstance(told, Logprobs)
    assert told.token == 1
    assert told.logprob == pytest.approx(math.log(0.3))
    assert [token for token, _ in told.top] == [0, 1]
    assert [value for _, value in told.top] == pytest.approx([math.log(0.5), math.log(0.3)])


def test_tokens_that_cannot_be_are_not_listed() -> None:
    told = Sampler(Sampling(n_logprobs=5)).sample(log(0.5, 0.0, 0.5))
    assert isinstance(told, Logprobs)
    assert [token for token, _ in told.top] == [0, 2]


def test_a_huge_row_has_logprobs_all_the_same() -> None:
    told = Sampler(Sampling(n_logprobs=1)).sample(np.array([1e300, -1e300]))
    assert told == Logprobs(0, 0.0, ((0, 0.0),))


@given(
    row=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(1e-3, 100),
        dynatemp_range=st.floats(0, 100),
        dynatemp_exponent=st.floats(0, 100),
        top_k=st.integers(0, 50),
        top_p=st.floats(0, 1),
        min_p=st.floats(0, 1),
        typical_p=st.floats(0, 1),
        top_n_sigma=st.floats(0, 100),
        xtc_probability=st.floats(0, 1),
        xtc_threshold=st.floats(0, 1),
        repeat_penalty=st.floats(0.01, 100),
        frequency_penalty=st.floats(-100, 100),
        presence_penalty=st.floats(-100, 100),
        dry_multiplier=st.floats(0, 100),
        dry_base=st.floats(1, 100),
        mirostat=st.integers(0, 2),
        mirostat_tau=st.floats(0, 100),
        mirostat_eta=st.floats(0, 1),
    ),
    history=st.lists(st.integers(0, 40)),
)
def test_whatever_is_asked_for_a_token_is_picked(
    row: list[float], sampling: Sampling, history: list[int]
) -> None:
    recent = [token % len(row) for token in history]
    sampler = Sampler(sampling, recent, n_vocab=len(row))
    for _ in range(3):
        token = sampler.sample(np.array(row))
        assert isinstance(token, int)
        assert 0 <= token < len(row)
