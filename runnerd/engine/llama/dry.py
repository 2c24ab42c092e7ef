"""DRY: a token that would go on with a repetition loses the more, the longer that is.

A token counts by the longest run of tokens before an earlier place of it that also ends what was
said. The same penalties as llama.cpp's sampler, which would read the whole vocabulary for each
set of breakers, and look at all of what was said again for each token.

Source: llama.cpp, src/llama-sampler.cpp; DRY is by p-e-w, text-generation-webui #5677.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runnerd.core.batch import Sampling
from runnerd.engine.llama.candidates import Row, Tokens
from runnerd.engine.llama.dry_breakers import Breakers

MAX_LOG = np.float32(88.7228391)  # of the largest float32: no power is beyond it
MAX_PENALTY = np.finfo(np.float32).max  # -inf would be a ban, and can leave a grammar nothing

Counts = npt.NDArray[np.int32]


class Dry:
    """The last tokens of a sequence, and how they repeat.

    They are in [start, stop) of `_tokens`. The first n tokens up to and with an index equal the
    last n of all, for n = `_runs` there; those that reach back before `start` are cut on use.
    """

    def __init__(self, sampling: Sampling, vocab: int, history: Sequence[int]) -> None:
        self.is_on = sampling.dry_multiplier > 0.0 and sampling.dry_last_n > 0
        self._n_most = sampling.dry_last_n if self.is_on else 0
        self._n_allowed = sampling.dry_allowed_length
        self._multiplier = float(np.float32(sampling.dry_multiplier))
        self._base = np.float32(sampling.dry_base)
        self._breakers = Breakers(sampling.dry_breakers if self.is_on else (), vocab)
        self._break: tuple[int, int] | None = None
        self._tokens: Counts = np.empty(2 * self._n_most, np.int32)
        self._runs: Counts = np.empty(2 * self._n_most, np.int32)
        self._start = self._stop = 0
        if self.is_on:
            self._begin(history[max(0, len(history) - self._n_most) :])

    def accept(self, token: int) -> None:
        """Remember a token that was picked."""
        if not self.is_on:
            return
        if self._stop == len(self._tokens):
            self._move_down()
        tokens, runs = self._tokens, self._runs
        start, stop = self._start, self._stop
        if stop > start:
            goes_on = tokens[start:stop] == token
            runs[start + 1 : stop] = runs[start : stop - 1] + 1
            runs[start] = 1
            runs[start:stop] *= goes_on
        tokens[stop] = token
        self._stop = stop + 1
        self._start = max(start, self._stop - self._n_most)
        n_back = self._breakers.n_tail_most + 1
        said = tokens[max(self._start, self._stop - n_back) : self._stop].tolist()
        if self._break is not None:
            self._break = self._break[0] + 1, self._break[1]
        self._break = self._breakers.last(said, n_back) or self._break

    def penalties(self) -> tuple[Tokens, Row]:
        """Return tokens, each once, and what is to be taken from their logits."""
        found = self._repeated()
        exponents = np.fromiter(found.values(), np.int64, len(found)) - self._n_allowed
        if self._base > 1.000001:
            n_most = int(MAX_LOG / np.log(self._base))
            exponents = np.minimum(exponents, n_most) if n_most > 0 else exponents
        penalties = self._multiplier * np.power(np.float64(self._base), exponents)
        ids = np.fromiter(found, np.int32, len(found))
        return ids, np.minimum(penalties, MAX_PENALTY).astype(np.float32)

    def _repeated(self) -> dict[int, int]:
        """Return the tokens that would go on with a repetition, and how long the longest is."""
        n_tokens = self._stop - self._start
        n_free = n_tokens
        if self._break is not None and self._break[0] < n_tokens:
            n_free = self._break[0] - self._break[1]
        if n_tokens <= self._n_allowed or n_free < self._n_allowed:
            return {}
        runs = self._runs[self._start : self._stop - 1]
        at = np.flatnonzero(runs >= self._n_allowed)
        lengths = np.minimum(np.minimum(runs[at], at + 1), n_free)
        follow = self._tokens[self._start + 1 + at]
        order = np.argsort(lengths, kind="stable")
        longest = dict(zip(follow[order].tolist(), lengths[order].tolist(), strict=True))
        return {
            token: length
            for token, length in longest.items()
            if length >= self._n_allowed and not self._breakers.holds_one(token)
        }

    def _begin(self, history: Sequence[int]) -> None:
        self._stop = n_tokens = len(history)
        self._tokens[:n_tokens] = history
        self._runs[:n_tokens] = _prefix_lengths(history[::-1])[::-1]
        self._break = self._breakers.last(history, n_tokens)

    def _move_down(self) -> None:
        n_tokens = self._stop - self._start
        for array in (self._tokens, self._runs):
            array[:n_tokens] = array[self._start : self._stop]
        self._start, self._stop = 0, n_tokens


def _prefix_lengths(tokens: Sequence[int]) -> list[int]:
    """Return for each place how many tokens from there on equal the first ones.

    Source: the Z algorithm, Gusfield, Algorithms on Strings, Trees and Sequences, 1.4.
    """
    n_tokens = len(tokens)
    lengths = [n_tokens] * min(1, n_tokens)
    left = right = 0  # the box: tokens [left, right) are known to equal the first ones
    for place in range(1, n_tokens):
        length = min(lengths[place - left], right - place) if place < right else 0
        if place + length >= right:
            while place + length < n_tokens and tokens[length] == tokens[place + length]:
                length += 1
            left, right = place, place + length
        lengths.append(length)
    return lengths
