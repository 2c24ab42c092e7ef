"""The short cuts pick what a plain chain over the whole vocabulary picks, token for token."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runnerd.core.batch import Sampled, Sampling

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.sampler import Samplers  # noqa: E402 needs llama_cpp
from runnerd.engine.llama.sampler_selection import few  # noqa: E402
from tests.engine.plain_chain import plain_chain  # noqa: E402

VOCABULARIES = (49_152, 262_144)
POOLS = {n: np.random.default_rng(n).standard_normal(n, np.float32) for n in VOCABULARIES}

Rows = list[NDArray[np.float32]]


def make_rows(n_vocab: int, seed: int, n_rows: int, spread: float, step: float) -> Rows:
    """Make rows of logits; with a `step` they are multiples of it, and many are equal."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n_rows):
        row = np.roll(POOLS[n_vocab], int(rng.integers(n_vocab))) * np.float32(spread)
        row[rng.integers(n_vocab, size=8)] += np.float32(4 * spread)
        rows.append(np.round(row / np.float32(step)) * np.float32(step) if step else row)
    return rows


def ours(sampling: Sampling, rows: Rows, history: tuple[int, ...]) -> list[Sampled]:
    samplers = Samplers(rows[0].size)
    samplers.open(1, sampling, history)
    picked: list[Sampled] = []
    for row in rows:
        before = row.copy()
        picked += samplers.sample((1,), row[np.newaxis]).sampled
        assert np.array_equal(row, before), "the row is as it was"
    samplers.close_all()
    return picked


def plain(sampling: Sampling, rows: Rows, history: tuple[int, ...]) -> list[Sampled]:
    with plain_chain(sampling, rows[0].size, history) as chain:
        return [chain.pick(row) for row in rows]


def sound(sampling: Sampling) -> Sampling:
    """Leave out what llama.cpp makes a NaN of: typical sampling behind top-n-sigma."""
    return sampling if sampling.typical_p == 1.0 else replace(sampling, top_n_sigma=0.0)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.25, 0.8, 1.0, 1.5]),
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.5]),
    top_k=st.sampled_from([0, 1, 2, 40, 200, 256, 257, 1000]),
    top_p=st.sampled_from([0.1, 0.75, 0.95, 1.0, 1.0]),
    min_p=st.sampled_from([0.0, 0.015625, 0.1, 0.5, 1.0]),
    typical_p=st.sampled_from([0.5, 1.0, 1.0, 1.0]),
    top_n_sigma=st.sampled_from([0.0, 0.0, 0.0, 1.5]),
    xtc_probability=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.01, 0.1]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.3]),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.1]),
    penalty_last_n=st.sampled_from([0, 1, 5, 64]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 0.8]),
    dry_last_n=st.sampled_from([4, 1024]),
    dry_breakers=st.just(()),  # they take a vocabulary
    mirostat=st.sampled_from([0] * 8 + [1, 2]),
    logit_bias=st.dictionaries(
        st.integers(0, 999), st.sampled_from([-np.inf, -3.3, 0.1, 25.0]), max_size=5
    ).map(lambda bias: tuple(bias.items())),
    seed=st.integers(0, 2**32 - 2),
).map(sound)


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    sampling=samplings,
    seed=st.integers(0, 2**16),
    spread=st.sampled_from([0.5, 3.0]),
    step=st.sampled_from([0.0, 0.0, 0.0, 0.25]),
)
def test_any_combination_picks_what_the_plain_chain_picks(
    n_vocab: int, sampling: Sampling, seed: int, spread: float, step: float
) -> None:
    rows = make_rows(n_vocab, seed, 2, spread, step)
    likely = rows[0].argsort()[-6:].tolist()
    history = (*likely, 3, 5, *likely, 3, 5, *likely[:3])
    assert ours(sampling, rows, history) == plain(sampling, rows, history)


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
        Sampling(temperature=1.0, top_k=256, repeat_penalty=1.1, presence_penalty=0.5),
        Sampling(temperature=0.7, min_p=0.05, dry_multiplier=0.8, dry_breakers=()),
        Sampling(temperature=1.5, top_k=100, xtc_probability=0.5, xtc_threshold=0.02),
    ],
    ids=["usual", "penalties", "min_p and dry", "xtc"],
)
def test_what_people_ask_for_takes_a_short_cut_and_is_the_same_for_long(
    n_vocab: int, sampling: Sampling
) -> None:
    rows = make_rows(n_vocab, 7, 40, 2.0, 0.0)
    history = tuple(rows[0].argsort()[-9:].tolist()) * 3
    assert few(sampling, rows[0]) is not None
    sampling = replace(sampling, seed=11)
    assert ours(sampling, rows, history) == plain(sampling, rows, history)


def test_equal_logits_at_the_cut_take_no_short_cut() -> None:
    (row,) = make_rows(49_152, 1, 1, 1.0, 0.5)
    assert few(Sampling(temperature=1.0, top_k=40), row) is None


@pytest.mark.parametrize("top_k", [2, 10, 40])
@pytest.mark.parametrize(
    "lowering",
    [
        Sampling(dry_multiplier=1.0, dry_base=1.0, dry_allowed_length=1, dry_breakers=()),
        Sampling(presence_penalty=1.0),
    ],
    ids=["dry", "penalties"],
)
def test_tokens_that_repetition_makes_equal_to_others_take_no_short_cut(
    lowering: Sampling, top_k: int
) -> None:
    row = make_rows(49_152, 3, 1, 0.25, 0.0)[0]
    lowered, other, before = 40_000, 17, 300
    row[[lowered, other, 99]] = 5.0, 4.0, 4.5
    history = (before, lowered, before)
    for seed in range(40):
        sampling = replace(lowering, temperature=1.5, top_k=top_k, seed=seed)
        assert ours(sampling, [row], history) == plain(sampling, [row], history)
