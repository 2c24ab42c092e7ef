"""Log-probabilities of the raw distribution: of the row as the model gave it."""

import numpy as np

from runnerd.core.batch import Logprobs
from runnerd.engine.llama.candidates import Row, best


class RawDistribution:
    """The log-softmax of one row, taken before anything changes it.

    The exponentials are float32, summed up as float64: exact to about 1e-6.
    """

    def __init__(self, row: Row, n_top: int, scratch: Row) -> None:
        self._row = row
        largest = row.max()
        with np.errstate(over="ignore"):  # to -inf, which is no probability
            np.subtract(row, largest, out=scratch)
        np.exp(scratch, out=scratch)
        self._log_sum = float(largest) + float(np.log(scratch.sum(dtype=np.float64)))
        self._top: tuple[tuple[int, float], ...] = ()
        if n_top > 0:
            ids = best(row, min(n_top, row.size))
            # Of equals the lower ids first, and no more of them than asked for.
            ids = ids[np.argsort(-row[ids], kind="stable")][:n_top]
            self._top = tuple((token, self._logprob(token)) for token in ids.tolist())

    def of(self, token: int) -> Logprobs:
        """Return what is told about a token that was picked."""
        return Logprobs(token, self._logprob(token), self._top)

    def _logprob(self, token: int) -> float:
        return float(self._row[token]) - self._log_sum
