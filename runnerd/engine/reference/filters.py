"""Which tokens are drawn from, and how likely each is.

The order is llama.cpp's: top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature. None of
them leaves no candidate.

Source: llama.cpp, src/llama-sampler.cpp, and its default order in common/common.h.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Sampling

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens, likeliest first, and their logits; banned ones are last, at minus infinity."""

    tokens: Ints
    logits: Floats

    @classmethod
    def of(cls, logits: Floats) -> "Candidates":
        """Return all tokens of a row, of which one at least is not banned."""
        # Stable: equal logits stay in the order of their ids.
        tokens = np.argsort(-logits, kind="stable")
        return cls(tokens, logits[tokens])

    @property
    def shares(self) -> Floats:
        """The probability of each."""
        weights = np.exp(self.logits - self.logits[0])
        shares: Floats = weights / weights.sum()
        return shares

    def first(self, n_tokens: int) -> "Candidates":
        """Return the likeliest, one at least."""
        stop = max(n_tokens, 1)
        return Candidates(self.tokens[:stop], self.logits[:stop])

    def at(self, point: float) -> int:
        """Return the index that a point in [0, 1) falls on."""
        upto = self.shares.cumsum()
        # Rounding can put the point on the sum itself, past the last token with any weight.
        last = upto.searchsorted(upto[-1])
        return int(min(upto.searchsorted(point * upto[-1], side="right"), last))


def filtered(candidates: Candidates, sampling: Sampling, chance: float) -> Candidates:
    """Cut off the candidates that are not to be drawn; `chance` in [0, 1) is XTC's draw."""
    if sampling.top_n_sigma > 0:
        candidates = _top_n_sigma(candidates, sampling.top_n_sigma)
    if sampling.top_k > 0:
        candidates = candidates.first(sampling.top_k)
    if sampling.typical_p < 1:
        candidates = _typical(candidates, sampling.typical_p)
    if sampling.top_p < 1:
        upto = candidates.shares.cumsum()
        candidates = candidates.first(int(upto.searchsorted(sampling.top_p * upto[-1])) + 1)
    if sampling.min_p > 0:
        weights = np.exp(candidates.logits - candidates.logits[0])
        candidates = candidates.first(int((weights >= sampling.min_p).sum()))
    if chance <= sampling.xtc_probability > 0 and sampling.xtc_threshold <= 0.5:
        candidates = _without_top_choices(candidates, sampling.xtc_threshold)
    return candidates


def tempered(candidates: Candidates, sampling: Sampling) -> Candidates:
    """Sharpen or flatten the distribution; by its entropy, where a range is given."""
    temperature = sampling.temperature
    if sampling.dynatemp_range > 0:
        if len(candidates.tokens) < 2:
            return candidates
        low = max(0.0, temperature - sampling.dynatemp_range)
        high = temperature + sampling.dynatemp_range
        spread = _entropy(candidates.shares) / np.log(len(candidates.tokens))
        temperature = low + (high - low) * spread**sampling.dynatemp_exponent
    if temperature <= 0:
        return candidates.first(1)
    # A temperature near 0 sends all but the best to exp(-inf) = 0, as it should.
    with np.errstate(over="ignore"):
        scaled = (candidates.logits - candidates.logits[0]) / temperature
    return Candidates(candidates.tokens, scaled)


def _top_n_sigma(candidates: Candidates, n_sigma: float) -> Candidates:
    """Ban what is more than so many standard deviations below the best."""
    logits = candidates.logits
    sigma = logits[np.isfinite(logits)].std()
    kept = np.where(logits < logits[0] - n_sigma * sigma, -np.inf, logits)
    return Candidates(candidates.tokens, kept)


def _typical(candidates: Candidates, typical_p: float) -> Candidates:
    """Keep the tokens whose surprise is nearest the entropy, until they have enough weight."""
    shares = candidates.shares
    with np.errstate(divide="ignore"):
        surprise = -np.log(shares)
    order = np.argsort(np.abs(surprise - _entropy(shares)), kind="stable")
    n_kept = int(shares[order].cumsum().searchsorted(typical_p, side="right")) + 1
    kept = np.sort(order[:n_kept])
    return Candidates(candidates.tokens[kept], candidates.logits[kept])


def _without_top_choices(candidates: Candidates, threshold: float) -> Candidates:
    """Drop all but the least likely of the tokens that reach the threshold (XTC)."""
    n_dropped = max(int((candidates.shares >= threshold).sum()) - 1, 0)
    return Candidates(candidates.tokens[n_dropped:], candidates.logits[n_dropped:])


def _entropy(shares: Floats) -> float:
    some = shares[shares > 0]
    return float(-(some * np.log(some)).sum())
