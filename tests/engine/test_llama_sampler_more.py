"""Samplers: biases, bans, log-probabilities, and parameters at their bounds."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runnerd.core.batch import Logprobs, Sampled, SampleFault, Sampling

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.sampler import Samplers  # noqa: E402 needs llama_cpp
from tests.engine.llama_vocabulary import Words, loaded_words  # noqa: E402

N_VOCAB, END = 1000, 17
INFINITY = math.inf


def noise(seed: int, n_vocab: int = N_VOCAB, spread: float = 3.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n_vocab, np.float32) * np.float32(spread)


@pytest.fixture
def samplers() -> Iterator[Samplers]:
    samplers = Samplers(N_VOCAB, (END,))
    yield samplers
    samplers.close_all()


def pick(samplers: Samplers, row: NDArray[np.float32], sampling: Sampling) -> Sampled:
    samplers.open(1, sampling, ())
    (sampled,) = samplers.sample((1,), row[np.newaxis]).sampled
    samplers.close(1)
    return sampled


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_bias_lifts_a_token_over_all_others(samplers: Samplers, temperature: float) -> None:
    biased = Sampling(temperature=temperature, logit_bias=((5, 100.0),))
    assert pick(samplers, noise(1), biased) == 5


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_banned_tokens_are_not_picked(samplers: Samplers, temperature: float) -> None:
    row = noise(1)
    banned = row.argsort()[-900:].tolist()
    sampling = Sampling(
        temperature=temperature, logit_bias=tuple((token, -INFINITY) for token in banned)
    )
    assert pick(samplers, row, sampling) not in banned


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_everything_banned_is_a_fault(samplers: Samplers, temperature: float) -> None:
    everything = tuple((token, -INFINITY) for token in range(N_VOCAB))
    sampling = Sampling(temperature=temperature, logit_bias=everything)
    assert isinstance(pick(samplers, noise(1), sampling), SampleFault)


def test_end_tokens_are_not_picked_where_they_are_to_be_ignored(samplers: Samplers) -> None:
    row = noise(1)
    row[END] = 90.0
    assert pick(samplers, row, Sampling()) == END
    assert pick(samplers, row, Sampling(ignore_end=True)) != END
    assert pick(samplers, row, Sampling(ignore_end=True, temperature=1.0)) != END


def test_each_sample_has_its_time(samplers: Samplers) -> None:
    for seq_id in range(3):
        samplers.open(seq_id, Sampling(temperature=float(seq_id)), ())
    decoded = samplers.sample((0, 1, 2), np.stack([noise(1)] * 3))
    assert len(decoded.sampling_s) == 3
    assert all(0 < seconds < 1 for seconds in decoded.sampling_s)


@pytest.mark.parametrize("n_top", [0, 1, 5, N_VOCAB, N_VOCAB + 50])
@pytest.mark.parametrize("spread", [0.1, 3.0, 100.0])
def test_logprobs_are_those_of_the_raw_row(samplers: Samplers, n_top: int, spread: float) -> None:
    row = noise(2, spread=spread)
    row[3] = -INFINITY
    sampling = Sampling(
        temperature=0.7, top_k=3, repeat_penalty=2.0, logit_bias=((9, 50.0),), n_logprobs=n_top
    )
    got = pick(samplers, row, sampling)
    assert isinstance(got, Logprobs)
    wide = row.astype(np.float64)
    exact = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    assert got.logprob == pytest.approx(exact[got.token], abs=1e-4)
    possible = np.argsort(-exact, kind="stable")[: min(n_top, N_VOCAB - 1)]
    assert [token for token, _ in got.top] == possible.tolist()
    assert [value for _, value in got.top] == pytest.approx(exact[possible].tolist(), abs=1e-4)
    assert sum(math.exp(value) for _, value in got.top) <= 1 + 1e-6


def test_of_equally_likely_tokens_the_first_are_listed(samplers: Samplers) -> None:
    got = pick(samplers, np.zeros(N_VOCAB, np.float32), Sampling(n_logprobs=3))
    assert isinstance(got, Logprobs)
    assert [token for token, _ in got.top] == [0, 1, 2]


def test_a_token_of_almost_no_probability_has_a_finite_logprob(samplers: Samplers) -> None:
    row = np.full(N_VOCAB, -3e38, np.float32)
    row[5] = 3e38
    got = pick(samplers, row, Sampling(n_logprobs=2, logit_bias=((5, -INFINITY),)))
    assert isinstance(got, Logprobs)
    assert math.isfinite(got.logprob)


bounds = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 5e-324, 1e-6, 1.0, 100.0]),
    dynatemp_range=st.sampled_from([0.0, 5e-324, 100.0]),
    dynatemp_exponent=st.sampled_from([0.0, 1.0, 100.0]),
    top_k=st.sampled_from([0, 1, 256, 2**31 - 1]),
    top_p=st.sampled_from([0.0, 5e-324, 1.0]),
    min_p=st.sampled_from([0.0, 5e-324, 1.0]),
    typical_p=st.sampled_from([0.0, 5e-324, 1.0]),
    top_n_sigma=st.sampled_from([0.0, 5e-324, 100.0]),
    xtc_probability=st.sampled_from([0.0, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 5e-324, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([0.01, 1.0, 100.0]),
    frequency_penalty=st.sampled_from([-100.0, 0.0, 100.0]),
    presence_penalty=st.sampled_from([-100.0, 0.0, 100.0]),
    penalty_last_n=st.sampled_from([0, 1, 65536]),
    dry_multiplier=st.sampled_from([0.0, 5e-324, 100.0]),
    dry_base=st.sampled_from([1.0, 100.0]),
    dry_allowed_length=st.sampled_from([1, 65536]),
    dry_last_n=st.sampled_from([0, 1, 65536]),
    dry_breakers=st.just(()),
    mirostat=st.sampled_from([0, 0, 1, 2]),
    mirostat_tau=st.sampled_from([0.0, 5e-324, 100.0]),
    mirostat_eta=st.sampled_from([0.0, 1.0]),
    seed=st.sampled_from([0, 2**32 - 2]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sampling=bounds, spread=st.sampled_from([0.0, 1e-30, 3.0, 1e4]))
def test_every_parameter_at_its_bounds_gives_tokens(sampling: Sampling, spread: float) -> None:
    samplers = Samplers(N_VOCAB, (END,))
    samplers.open(1, replace(sampling, n_logprobs=1), (1, 2, 3, 1, 2, 3, 1, 2) * 3)
    for n_row in range(4):
        (got,) = samplers.sample((1,), noise(n_row, spread=spread)[np.newaxis]).sampled
        assert isinstance(got, Logprobs)
        assert 0 <= got.token < N_VOCAB
        assert math.isfinite(got.logprob)
    samplers.close_all()


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with loaded_words() as words:
        yield words


@pytest.mark.parametrize(
    ("breakers", "repeats"), [((), False), (("*",), True), (("\0*",), False), (("x\0",), False)]
)
def test_dry_forbids_a_repetition_that_no_breaker_ends(
    words: Words, breakers: tuple[str, ...], repeats: bool
) -> None:
    one, two, star, other = map(words.token, [" one", " two", "*", " other"])
    sampling = Sampling(
        dry_multiplier=50.0, dry_allowed_length=2, dry_breakers=breakers, dry_last_n=64
    )
    words.samplers.open(0, sampling, (one, star, two, other, one, star))
    row = words.row({two: 9.0, other: 8.0})
    assert words.pick(0, row) == (two if repeats else other)
    words.samplers.close(0)


def test_dry_samplers_of_the_same_parameters_do_not_share_a_history(words: Words) -> None:
    one, two, three, other = map(words.token, [" one", " two", " three", " other"])
    sampling = Sampling(dry_multiplier=50.0)
    words.samplers.open(0, sampling, (one, two, three, other, one, two))
    words.samplers.open(1, sampling, (three, one))
    row = words.row({three: 9.0, other: 8.0})
    assert [words.pick(seq_id, row) for seq_id in (0, 1)] == [other, three]
    words.samplers.close(0)
    words.samplers.close(1)
