"""Pick a token from a row of logits, in numpy.

The order is llama.cpp's: penalties, top-k, top-p, min-p, temperature, draw. A draw depends on
the seed and on how many tokens the sampler has given, and on nothing else.
"""

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Sampled, SampleFault, Sampling

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

NO_CHOICE = SampleFault("the model gave no finite logits")


def draw(seed: int, n_generated: int) -> float:
    """Return the uniform draw in [0, 1) for the n_generated-th token."""
    key = np.array([seed, n_generated], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())


def sample_greedy(logits: Floats) -> list[Sampled]:
    """Return the likeliest token of every row, the lowest id on ties."""
    tokens = logits.argmax(axis=1)
    best = logits[np.arange(len(tokens)), tokens]
    sampled: list[Sampled] = tokens.tolist()
    # argmax stops at the first NaN, so one look at the winner finds every bad row.
    for row in np.flatnonzero(~np.isfinite(best)):
        sampled[row] = NO_CHOICE
    return sampled


class Sampler:
    """The sampling state of one sequence."""

    def __init__(self, sampling: Sampling, history: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._recent: deque[int] = deque(
            history, maxlen=sampling.penalty_last_n if sampling.has_penalties else 0
        )
        self._n_generated = 0
        self.is_greedy = sampling.temperature <= 0 and not sampling.has_penalties

    def sample(self, logits: Floats) -> Sampled:
        """Pick a token and remember it. Only a row that gives a token counts as drawn."""
        if not np.isfinite(logits.max()):
            return NO_CHOICE
        if self._recent:
            logits = self._penalised(logits)
        token = int(logits.argmax()) if self._sampling.temperature <= 0 else self._drawn(logits)
        self._recent.append(token)
        self._n_generated += 1
        return token

    def _penalised(self, logits: Floats) -> Floats:
        counted = Counter(self._recent)
        tokens = np.fromiter(counted.keys(), dtype=np.intp)
        counts = np.fromiter(counted.values(), dtype=np.float64)
        sampling = self._sampling
        seen = logits[tokens]
        # Dividing a negative logit would reward the token.
        factor = np.where(seen > 0, 1 / sampling.repeat_penalty, sampling.repeat_penalty)
        penalised = logits.copy()
        penalised[tokens] = (
            seen * factor - counts * sampling.frequency_penalty - sampling.presence_penalty
        )
        return penalised

    def _drawn(self, logits: Floats) -> int:
        tokens = self._candidates(logits)
        # A temperature near 0 sends all but the best to exp(-inf) = 0, as it should.
        with np.errstate(over="ignore"):
            scaled = (logits[tokens] - logits[tokens[0]]) / self._sampling.temperature
        upto = np.exp(scaled).cumsum()
        point = draw(self._sampling.seed, self._n_generated) * upto[-1]
        # Rounding can put the point on the sum itself, past the last token with any weight.
        last = upto.searchsorted(upto[-1])
        return int(tokens[min(upto.searchsorted(point, side="right"), last)])

    def _candidates(self, logits: Floats) -> Ints:
        """Return the tokens to draw from, likeliest first; at least one."""
        sampling = self._sampling
        # Stable: equal logits stay in the order of their ids.
        tokens = np.argsort(-logits, kind="stable")
        if sampling.top_k > 0:
            tokens = tokens[: sampling.top_k]
        if sampling.top_p >= 1 and sampling.min_p <= 0:
            return tokens
        weights = np.exp(logits[tokens] - logits[tokens[0]])
        n_kept = len(tokens)
        if sampling.top_p < 1:
            upto = weights.cumsum()
            n_kept = int(upto.searchsorted(sampling.top_p * upto[-1])) + 1
        # The likeliest has weight 1, so min_p compares with the weights as they are.
        n_likely = int((weights >= sampling.min_p).sum())
        return tokens[: max(1, min(n_kept, n_likely))]
