import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runnerd.core.batch import SampleFault, Sampling
from runnerd.engine.reference.grammar import Literals
from runnerd.engine.reference.sampling import Sampler, draws, sample_greedy

Floats = NDArray[np.float64]


def logits(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def log(*probabilities: float) -> Floats:
    return np.log(logits(*probabilities))


def choices(sampling: Sampling, row: Floats, n_draws: int = 300) -> set[int]:
    sampler = Sampler(sampling)
    drawn = {sampler.sample(row) for _ in range(n_draws)}
    return {token for token in drawn if isinstance(token, int)}


# --- greedy --------------------------------------------------------------------------------


def test_temperature_0_picks_the_likeliest() -> None:
    assert Sampler(Sampling()).sample(logits(0, 3, 2)) == 1


def test_the_lowest_id_wins_a_tie() -> None:
    assert Sampler(Sampling()).sample(logits(0, 3, 3)) == 1
    assert sample_greedy(np.array([[0.0, 3.0, 3.0]])) == [1]
    assert Sampler(Sampling(temperature=1.0, top_k=1)).sample(logits(0, 3, 3)) == 1


def test_greedy_rows_are_sampled_at_once() -> None:
    rows = np.array([[1.0, 2.0], [2.0, 1.0], [5.0, 9.0]])
    assert sample_greedy(rows) == [1, 0, 1]


def test_no_rows_give_no_samples() -> None:
    assert sample_greedy(np.empty((0, 4))) == []


@pytest.mark.parametrize(
    "bad",
    [
        (1.0, math.nan, 2.0),
        (math.nan,) * 3,
        (-math.inf,) * 3,
        (1.0, math.inf, math.inf),
    ],
)
def test_logits_that_give_no_token_are_a_fault_of_their_row(bad: tuple[float, ...]) -> None:
    assert isinstance(Sampler(Sampling()).sample(logits(*bad)), SampleFault)
    assert isinstance(Sampler(Sampling(temperature=1.0)).sample(logits(*bad)), SampleFault)
    good, fault = sample_greedy(np.array([[0.0, 1.0, 0.0], bad]))
    assert good == 1
    assert isinstance(fault, SampleFault)


def test_a_token_at_minus_infinity_is_never_drawn() -> None:
    row = logits(0.0, -math.inf, 0.0)
    assert choices(Sampling(temperature=5.0), row) == {0, 2}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.1),
        Sampling(repeat_penalty=1.1),
        Sampling(dry_multiplier=0.8),
        Sampling(logit_bias=((0, 1.0),)),
        Sampling(ignore_end=True),
        Sampling(n_logprobs=0),
        Sampling(constraint=Literals((b"a",))),
    ],
)
def test_only_plain_temperature_0_is_greedy(sampling: Sampling) -> None:
    assert not Sampler(sampling).is_greedy
    assert Sampler(Sampling(top_k=3, xtc_probability=0.5, mirostat=2)).is_greedy
    assert Sampler(Sampling(temperature=-1.0)).is_greedy


# --- drawing -------------------------------------------------------------------------------


def test_a_draw_depends_on_seed_and_count_alone() -> None:
    keys = [(seed, n) for seed in (0, 1, 2**64 - 1) for n in range(3)]
    drawn = [draws(*key) for key in keys]
    assert drawn == [draws(*key) for key in keys]
    assert len({x for pair in drawn for x in pair}) == 18
    assert all(0 <= x < 1 for pair in drawn for x in pair)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    sampler = Sampler(Sampling(temperature=1.0))
    row = log(0.5, 0.3, 0.2)
    counts = Counter(sampler.sample(row) for _ in range(4000))
    shares = [counts[token] / 4000 for token in range(3)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_temperature_sharpens_or_flattens() -> None:
    def share(temperature: float) -> float:
        sampler = Sampler(Sampling(temperature=temperature))
        return sum(sampler.sample(log(0.8, 0.2)) == 0 for _ in range(2000)) / 2000

    assert share(0.5) == pytest.approx(16 / 17, abs=0.03)
    assert share(2.0) == pytest.approx(2 / 3, abs=0.03)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-3])
def test_a_temperature_near_0_is_greedy(temperature: float) -> None:
    assert choices(Sampling(temperature=temperature), logits(0, 3, 2)) == {1}


def test_a_huge_temperature_makes_all_tokens_alike() -> None:
    assert choices(Sampling(temperature=1e308), logits(-50, 50, 0)) == {0, 1, 2}


def test_a_fault_does_not_count_as_a_draw() -> None:
    row = log(0.25, 0.25, 0.25, 0.25)
    plain, faulty = (Sampler(Sampling(temperature=1.0, seed=3)) for _ in range(2))
    expected = [plain.sample(row) for _ in range(10)]
    drawn = []
    for _ in range(10):
        faulty.sample(row * math.nan)
        drawn.append(faulty.sample(row))
    assert drawn == expected


# --- what is cut off -----------------------------------------------------------------------


def test_top_k_keeps_the_k_likeliest() -> None:
    assert choices(Sampling(temperature=1.0, top_k=2), log(0.2, 0.3, 0.1, 0.4)) == {1, 3}


def test_a_top_k_over_the_vocabulary_keeps_all() -> None:
    assert choices(Sampling(temperature=1.0, top_k=99), log(0.5, 0.3, 0.2)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.0, {0}), (0.3, {0}), (0.45, {0, 1}), (0.75, {0, 1, 2}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: set[int]) -> None:
    row = log(0.4, 0.3, 0.2, 0.1)
    assert choices(Sampling(temperature=1.0, top_p=top_p), row) == kept


@pytest.mark.parametrize(
    ("min_p", "kept"), [(0.0, {0, 1, 2, 3}), (0.4, {0, 1, 2}), (0.6, {0, 1}), (1.0, {0})]
)
def test_min_p_is_a_share_of_the_likeliest(min_p: float, kept: set[int]) -> None:
    row = log(0.4, 0.3, 0.2, 0.1)
    assert choices(Sampling(temperature=1.0, min_p=min_p), row) == kept


def test_top_p_counts_what_top_k_left() -> None:
    # Of the two left the first has 4/7, enough for 0.55; of all four it has 0.4.
    row = log(0.4, 0.3, 0.2, 0.1)
    assert choices(Sampling(temperature=1.0, top_k=2, top_p=0.55), row) == {0}


def test_cuts_come_before_temperature() -> None:
    row = log(0.4, 0.3, 0.2, 0.1)
    assert choices(Sampling(temperature=100.0, min_p=0.6), row) == {0, 1}


@given(
    row=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40),
    temperature=st.floats(0, 1e6),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
)
def test_whatever_is_cut_off_a_token_is_left(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    token = Sampler(sampling).sample(logits(*row))
    assert isinstance(token, int)
    assert 0 <= token < len(row)


# --- penalties -----------------------------------------------------------------------------


def test_the_repeat_penalty_divides_what_is_positive() -> None:
    sampling = Sampling(repeat_penalty=2.0)
    assert Sampler(sampling, [0]).sample(logits(4.0, 2.1)) == 1
    assert Sampler(sampling, [0]).sample(logits(4.0, 1.9)) == 0


def test_the_repeat_penalty_multiplies_what_is_negative() -> None:
    sampling = Sampling(repeat_penalty=2.0)
    assert Sampler(sampling, [0]).sample(logits(-1.0, -1.9)) == 1
    assert Sampler(sampling, [0]).sample(logits(-1.0, -2.1)) == 0


def test_the_frequency_penalty_counts_and_the_presence_penalty_does_not() -> None:
    frequency = Sampling(frequency_penalty=1.0)
    presence = Sampling(presence_penalty=1.0)
    row = logits(4.0, 1.5)
    assert Sampler(frequency, [0, 0]).sample(row) == 0
    assert Sampler(frequency, [0, 0, 0]).sample(row) == 1
    assert Sampler(presence, [0, 0, 0]).sample(row) == 0


def test_a_negative_penalty_rewards() -> None:
    assert Sampler(Sampling(presence_penalty=-2.0), [1]).sample(logits(1.0, 0.0)) == 1


def test_generated_tokens_are_penalised_too() -> None:
    sampler = Sampler(Sampling(presence_penalty=100.0))
    assert [sampler.sample(logits(3, 2, 1)) for _ in range(3)] == [0, 1, 2]


def test_penalties_look_back_over_the_last_tokens_only() -> None:
    sampler = Sampler(Sampling(presence_penalty=100.0, penalty_last_n=1), [0, 2])
    assert [sampler.sample(logits(3, 2, 1)) for _ in range(3)] == [0, 1, 0]


def test_a_window_of_0_switches_penalties_off() -> None:
    sampler = Sampler(Sampling(presence_penalty=100.0, penalty_last_n=0), [0])
    assert sampler.sample(logits(3, 2)) == 0
    assert sampler.is_greedy


def test_penalties_come_before_the_cuts() -> None:
    sampling = Sampling(temperature=1.0, top_k=1, presence_penalty=100.0)
    assert Sampler(sampling, [0]).sample(logits(3, 2, 1)) == 1


def test_penalties_leave_the_row_as_it_was() -> None:
    row = logits(3, 2, 1)
    Sampler(Sampling(presence_penalty=100.0), [0]).sample(row)
    assert row.tolist() == [3, 2, 1]
