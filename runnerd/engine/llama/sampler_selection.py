"""Which tokens a chain has to see: where a filter leaves few, these few are found faster.

What is picked from them is what the chain would pick from the whole row: the first filter that
cuts leaves the same tokens, in the same order, and all that follows sees only those.
"""

from math import log

from runnerd.core.batch import Sampling
from runnerd.engine.llama.candidates import Row, Tokens, at_least, best, has_equals

MOST_FEW = 256  # of a larger top-k, to find them takes as long as llama.cpp's own partial sort
SLACK = 1e-5  # of the largest logit: float32 knows these numbers to 1e-7


def few(sampling: Sampling, row: Row) -> Tokens | None:
    """Return the tokens to choose from, ascending; None: all, there is no short cut."""
    if sampling.mirostat or sampling.top_n_sigma > 0.0:
        return None  # they look at all logits
    if 0 < sampling.top_k <= MOST_FEW:
        found = best(row, sampling.top_k)
        # llama.cpp's order of equals depends on what else it sorts.
        return None if has_equals(row, found) else found
    if sampling.top_k or sampling.typical_p < 1.0 or sampling.top_p < 1.0:
        return None  # their sums run over all probabilities
    if sampling.min_p > 0.0:
        largest = float(row.max())
        slack = SLACK * max(1.0, abs(largest))
        return at_least(row, largest + log(sampling.min_p) - slack)
    return None
