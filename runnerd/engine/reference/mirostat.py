"""Mirostat: cut the tail so that the text's surprise stays near a target.

Source: Basu and others, 2020, arXiv:2007.14966; llama.cpp, src/llama-sampler.cpp.
"""

import numpy as np

from runnerd.core.batch import Sampling
from runnerd.engine.reference.filters import Candidates

N_ESTIMATED = 100  # candidates that version 1 estimates the distribution's exponent from


class Mirostat:
    """Picks tokens; `_bound` is the most surprise, in bits, that the next may have."""

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        self._sampling = sampling
        self._n_vocab = n_vocab
        self._bound = 2 * sampling.mirostat_tau

    def pick(self, candidates: Candidates, point: float) -> int:
        """Return the token that a point in [0, 1) falls on, and learn from it."""
        if self._sampling.mirostat == 1:
            candidates = candidates.first(self._n_fitting(candidates))
        else:
            n_fitting = int((candidates.shares >= 2.0**-self._bound).sum())
            candidates = candidates.first(n_fitting)
        index = candidates.at(point)
        surprise = -np.log2(candidates.shares[index])
        error = float(surprise) - self._sampling.mirostat_tau
        self._bound -= self._sampling.mirostat_eta * error
        return int(candidates.tokens[index])

    def _n_fitting(self, candidates: Candidates) -> int:
        """Return how many candidates of a Zipf distribution like this one fit the bound."""
        shares = candidates.shares[:N_ESTIMATED]
        shares = shares[shares > 0]
        if len(shares) < 2:
            return 1
        ranks = np.arange(1, len(shares))
        steps = np.log((ranks + 1) / ranks)
        exponent = (steps * np.log(shares[:-1] / shares[1:])).sum() / (steps**2).sum()
        rest = exponent - 1
        with np.errstate(all="ignore"):
            n_fitting = (rest * 2.0**self._bound / (1 - self._n_vocab**-rest)) ** (1 / exponent)
        return len(candidates.tokens) if np.isinf(n_fitting) else int(np.nan_to_num(n_fitting))
