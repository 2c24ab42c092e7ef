"""The chains of llama.cpp against the reference engine's filters: the same tokens, as often."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from runnerd.core.batch import Sampled, Sampling
from runnerd.engine.reference.filters import Candidates, filtered, tempered
from runnerd.engine.reference.mirostat import Mirostat
from runnerd.engine.reference.penalties import penalise, penalise_loops

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.sampler import Samplers  # noqa: E402 needs llama_cpp

N_VOCAB, N_DRAWS = 100, 3000
HISTORY = (7, 8, 9, 1, 7, 8, 9, 2, 2, 2, 7, 8)
ROW = (np.random.default_rng(4).standard_normal(N_VOCAB) * 2).astype(np.float32)
ROW[[7, 8, 9]] += 3
FLAT = Sampling(temperature=1.0, dry_breakers=())

Floats = NDArray[np.float64]

CASES = {
    "nothing": FLAT,
    "temperature": replace(FLAT, temperature=0.5),
    "high temperature": replace(FLAT, temperature=3.0),
    "dynamic temperature": replace(FLAT, dynatemp_range=0.7, dynatemp_exponent=1.5),
    "dynamic temperature down to 0": replace(FLAT, temperature=0.5, dynatemp_range=2.0),
    "top_k": replace(FLAT, top_k=5),
    "top_p": replace(FLAT, top_p=0.6),
    "min_p": replace(FLAT, min_p=0.1),
    "typical_p": replace(FLAT, typical_p=0.4),
    "top_n_sigma": replace(FLAT, top_n_sigma=1.2),
    "xtc": replace(FLAT, xtc_probability=0.6, xtc_threshold=0.08),
    "xtc always": replace(FLAT, xtc_probability=1.0, xtc_threshold=0.05),
    "xtc of a threshold too high": replace(FLAT, xtc_probability=1.0, xtc_threshold=0.6),
    "repeat": replace(FLAT, repeat_penalty=1.8),
    "frequency": replace(FLAT, frequency_penalty=0.8),
    "presence": replace(FLAT, presence_penalty=1.5, penalty_last_n=4),
    "dry": replace(FLAT, dry_multiplier=1.1, dry_base=2.0),
    "dry from 1": replace(FLAT, dry_multiplier=0.5, dry_allowed_length=1, dry_last_n=6),
    "bias": replace(FLAT, logit_bias=((7, -2.0), (50, 6.0), (8, -np.inf))),
    "mirostat": replace(FLAT, mirostat=1, mirostat_tau=2.0),
    "mirostat 2": replace(FLAT, mirostat=2, mirostat_tau=2.0),
    "what people use": replace(FLAT, temperature=0.8, top_k=40, top_p=0.9, min_p=0.05),
    "everything": replace(
        FLAT,
        temperature=1.3,
        top_n_sigma=2.5,
        top_k=30,
        top_p=0.95,
        min_p=0.02,
        xtc_probability=0.5,
        repeat_penalty=1.2,
        dry_multiplier=0.8,
    ),
}


def expected(sampling: Sampling) -> Floats:
    """Return what the reference engine gives each token."""
    logits = ROW.astype(np.float64)
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if sampling.has_penalties:
        penalise(logits, sampling, HISTORY[-sampling.penalty_last_n :])
    if sampling.dry_multiplier:
        penalise_loops(logits, sampling, HISTORY[-sampling.dry_last_n :])
    if sampling.mirostat:
        points = (np.arange(2000) + 0.5) / 2000
        candidates = tempered(Candidates.of(logits), sampling)
        picks = [Mirostat(sampling, N_VOCAB).pick(candidates, point) for point in points.tolist()]
        return np.bincount(picks, minlength=N_VOCAB) / points.size
    shares = np.zeros(N_VOCAB)
    for chance, weight in ((0.0, sampling.xtc_probability), (1.0, 1 - sampling.xtc_probability)):
        left = tempered(filtered(Candidates.of(logits), sampling, chance), sampling)
        shares[left.tokens] += weight * left.shares
    return shares


def drawn(sampling: Sampling) -> Floats:
    """Return how often llama.cpp picks each token as the first after the history."""
    samplers = Samplers(N_VOCAB)
    picks: list[Sampled] = []
    for seed in range(N_DRAWS):
        samplers.open(0, replace(sampling, seed=seed), HISTORY)
        picks += samplers.sample((0,), ROW[np.newaxis].copy()).sampled
        samplers.close(0)
    return np.bincount(np.array(picks, np.int64), minlength=N_VOCAB) / N_DRAWS


@pytest.mark.parametrize("case", CASES)
def test_llama_and_reference_draw_the_same_tokens_equally_often(case: str) -> None:
    shares, often = expected(CASES[case]), drawn(CASES[case])
    impossible = shares < 1e-9
    assert not often[impossible].any()
    likely = shares > 10 / N_DRAWS
    assert often[likely].all()
    deviation = np.sqrt(shares * (1 - shares) / N_DRAWS)
    assert (np.abs(often - shares) <= 4.5 * deviation + 2 / N_DRAWS).all()


@pytest.mark.parametrize("case", CASES)
def test_without_temperature_both_take_the_same_token(case: str) -> None:
    sampling = replace(CASES[case], temperature=0.0)
    samplers = Samplers(N_VOCAB)
    samplers.open(0, sampling, HISTORY)
    (picked,) = samplers.sample((0,), ROW[np.newaxis].copy()).sampled
    samplers.close_all()
    plain = replace(FLAT, temperature=1e-4)
    changes = ("logit_bias", "repeat_penalty", "frequency_penalty", "presence_penalty")
    dry = ("penalty_last_n", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_last_n")
    values = {name: getattr(sampling, name) for name in (*changes, *dry)}
    assert picked == expected(replace(plain, **values)).argmax()
