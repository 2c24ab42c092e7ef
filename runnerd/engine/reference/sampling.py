"""Pick a token from a row of logits, in numpy.

The order is llama.cpp's: constraint and bans, bias, penalties, DRY, filters, temperature,
draw. Mirostat stands in for the filters. A draw depends on the seed and on how many tokens the
sampler has given, and on nothing else.
"""

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Logprobs, Sampled, SampleFault, Sampling
from runnerd.engine.reference.filters import Candidates, filtered, tempered
from runnerd.engine.reference.grammar import Literals
from runnerd.engine.reference.mirostat import Mirostat
from runnerd.engine.reference.penalties import penalise, penalise_loops
from runnerd.engine.reference.tokenizer import END_TOKENS, N_VOCAB

Floats = NDArray[np.float64]

NO_CHOICE = SampleFault("the model gave no finite logits", spoils_slot=True)
ALL_BANNED = SampleFault("every token is banned")
UNLIKELY = -1e6  # what a constraint asks for though the model never says it


def draws(seed: int, n_generated: int) -> tuple[float, float]:
    """Return two uniform draws in [0, 1) for the n_generated-th token: its own, and XTC's."""
    key = np.array([seed, n_generated], dtype=np.uint64)
    first, second = np.random.Generator(np.random.Philox(key=key)).random(2).tolist()
    return first, second


def sample_greedy(logits: Floats) -> list[Sampled]:
    """Return the likeliest token of every row, the lowest id on ties."""
    tokens = logits.argmax(axis=1)
    best = logits[np.arange(len(tokens)), tokens]
    sampled: list[Sampled] = tokens.tolist()
    # argmax stops at the first NaN, so one look at the winner finds every bad row.
    for row in np.flatnonzero(~np.isfinite(best)):
        sampled[row] = NO_CHOICE
    return sampled


def logprobs(row: Floats, token: int, n_top: int) -> Logprobs:
    """Return the log-probabilities of a token and of the likeliest ones."""
    best = row.max()
    values = row - (best + np.log(np.exp(row - best).sum()))
    order = np.argsort(-values, kind="stable")[:n_top].tolist()
    top = tuple((other, float(values[other])) for other in order if values[other] > -np.inf)
    return Logprobs(token, float(values[token]), top)


class Sampler:
    """The sampling state of one sequence."""

    def __init__(
        self, sampling: Sampling, history: Sequence[int] = (), n_vocab: int = N_VOCAB
    ) -> None:
        assert isinstance(sampling.constraint, Literals | None), sampling.constraint
        self._sampling = sampling
        self._constraint = sampling.constraint
        self._banned = list(END_TOKENS) if sampling.ignore_end else []
        self._biased = [token for token, _ in sampling.logit_bias]
        self._biases = [bias for _, bias in sampling.logit_bias]
        self._recent: deque[int] = deque(history, maxlen=sampling.n_history)
        self._mirostat = Mirostat(sampling, n_vocab)
        self._said = b""
        self._n_generated = 0
        changes = (sampling.n_history, self._constraint, self._banned, self._biased)
        self.is_greedy = (
            sampling.temperature <= 0 and sampling.n_logprobs is None and not any(changes)
        )

    def sample(self, row: Floats) -> Sampled:
        """Pick a token and remember it. Only a row that gives a token counts as drawn."""
        if not np.isfinite(row.max()):
            return NO_CHOICE
        logits = self._changed(row)
        if not np.isfinite(logits.max()):
            return ALL_BANNED
        token = int(logits.argmax()) if self._sampling.temperature <= 0 else self._drawn(logits)
        self._recent.append(token)
        self._n_generated += 1
        if self._constraint is not None and token not in END_TOKENS:
            self._said += bytes((token,))
        n_logprobs = self._sampling.n_logprobs
        return token if n_logprobs is None else logprobs(row, token, n_logprobs)

    def _changed(self, row: Floats) -> Floats:
        """Return a row with everything applied that leaves all tokens in it."""
        sampling = self._sampling
        logits = row.copy()
        if self._constraint is not None:
            allowed = self._constraint.allowed(self._said)
            logits = np.full_like(row, -np.inf)
            logits[allowed] = np.maximum(row[allowed], UNLIKELY)
        logits[self._biased] += self._biases
        if self._constraint is None or np.isfinite(np.delete(logits, self._banned)).any():
            logits[self._banned] = -np.inf  # a constraint that leaves only the end has its way
        if sampling.has_penalties:
            penalise(logits, sampling, self._last(sampling.penalty_last_n))
        if sampling.dry_multiplier > 0:
            penalise_loops(logits, sampling, self._last(sampling.dry_last_n))
        return logits

    def _drawn(self, logits: Floats) -> int:
        sampling = self._sampling
        point, chance = draws(sampling.seed, self._n_generated)
        candidates = Candidates.of(logits)
        if sampling.mirostat:
            return self._mirostat.pick(tempered(candidates, sampling), point)
        candidates = tempered(filtered(candidates, sampling, chance), sampling)
        return int(candidates.tokens[candidates.at(point)])

    def _last(self, n_tokens: int) -> list[int]:
        return list(islice(self._recent, max(len(self._recent) - n_tokens, 0), None))


class Samplers:
    """The open samplers, by sequence; opening one twice, or closing one not open, is a bug."""

    def __init__(self) -> None:
        self._open: dict[int, Sampler] = {}

    def open(self, seq_id: int, sampling: Sampling, history: Sequence[int]) -> None:
        """Make a sequence's sampler."""
        assert seq_id not in self._open, f"sampler {seq_id} is open"
        self._open[seq_id] = Sampler(sampling, history)

    def close(self, seq_id: int) -> None:
        """Forget a sequence's sampler."""
        self.check([seq_id])
        del self._open[seq_id]

    def clear(self) -> None:
        """Forget every sampler."""
        self._open.clear()

    def check(self, seq_ids: Sequence[int]) -> None:
        """Assert that sequences have samplers."""
        for seq_id in seq_ids:
            assert seq_id in self._open, f"sampler {seq_id} is not open"

    def sample(self, seq_ids: Sequence[int], rows: Floats) -> tuple[list[Sampled], list[float]]:
        """Pick the next token of each sequence from its row, and say how long each took."""
        began_at = time.perf_counter()
        sampled = sample_greedy(rows)
        ended_at = time.perf_counter()
        seconds = [(ended_at - began_at) / max(len(sampled), 1)] * len(sampled)
        for output, seq_id in enumerate(seq_ids):
            sampler = self._open[seq_id]
            if not sampler.is_greedy:
                began_at = time.perf_counter()
                sampled[output] = sampler.sample(rows[output])
                seconds[output] += time.perf_counter() - began_at
        return sampled, seconds
