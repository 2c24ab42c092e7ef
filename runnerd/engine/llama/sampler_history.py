"""What a sequence has said lately, and what that and the request's biases do to its logits."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from runnerd.core.batch import Sampling
from runnerd.engine.llama.candidates import Row, Tokens
from runnerd.engine.llama.dry import Dry


class Recent:
    """The last tokens of a sequence, and how often each of them is there."""

    def __init__(self, n_tokens: int, history: tuple[int, ...]) -> None:
        self._tokens: deque[int] = deque()
        self._n_tokens = n_tokens
        self._counts: dict[int, int] = {}
        for token in history[max(0, len(history) - n_tokens) :]:
            self.push(token)

    def push(self, token: int) -> None:
        """Add a token, and forget the oldest if there is no room."""
        if self._n_tokens == 0:
            return
        if len(self._tokens) == self._n_tokens:
            oldest = self._tokens.popleft()
            self._counts[oldest] -= 1
            if self._counts[oldest] == 0:
                del self._counts[oldest]
        self._tokens.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1

    @property
    def ids(self) -> Tokens:
        """The tokens, each once."""
        return np.fromiter(self._counts, np.int32, len(self._counts))

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of `ids` is there."""
        return np.fromiter(self._counts.values(), np.float32, len(self._counts))


class Adjustment:
    """Logit biases, repetition penalties, DRY: they change few logits, so they are done in place.

    The same float32 operations as llama.cpp's samplers, which would search all candidates for
    these few, and count in an array of the vocabulary's size.
    """

    def __init__(
        self, sampling: Sampling, end_tokens: Iterable[int], history: tuple[int, ...], vocab: int
    ) -> None:
        bias = dict(sampling.logit_bias)
        if sampling.ignore_end:
            bias |= dict.fromkeys(end_tokens, -np.inf)
        self._biased = np.fromiter(bias, np.int32, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._has_penalties = sampling.has_penalties
        self._penalised = Recent(sampling.penalty_last_n if self._has_penalties else 0, history)
        self._repeat = np.float32(sampling.repeat_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._dry = Dry(sampling, vocab, history)
        self.changes_logits = bool(bias) or self._has_penalties or self._dry.is_on

    def accept(self, token: int) -> None:
        """Remember a token that was picked."""
        self._penalised.push(token)
        self._dry.accept(token)

    @contextmanager
    def applied(self, row: Row) -> Iterator[None]:
        """Change the row for a `with` block; then it is as it was."""
        changed: list[tuple[Tokens, Row]] = []
        if self._biased.size:
            before = row[self._biased]
            changed.append((self._biased, before))
            row[self._biased] = before + self._bias
        if self._has_penalties:
            penalised = self._penalised.ids
            before = row[penalised]
            changed.append((penalised, before))
            with np.errstate(over="ignore"):
                row[penalised] = self._penalty(before)
        if self._dry.is_on:
            repeated, penalties = self._dry.penalties()
            before = row[repeated]
            changed.append((repeated, before))
            row[repeated] = before - penalties
        try:
            yield
        finally:
            for ids, before in reversed(changed):
                row[ids] = before

    def _penalty(self, logits: Row) -> Row:
        logits = np.where(logits <= 0, logits * self._repeat, logits / self._repeat)
        changed: Row = logits - (self._penalised.counts * self._frequency + self._presence)
        return changed
