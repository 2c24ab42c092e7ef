"""Picks tokens: biases, penalties and DRY, then a grammar's word, then llama.cpp's sampler chain.

A chain sees only the few tokens that can come of it, where they are quickly found; what it picks
does not depend on that. With a grammar, a token is picked as without one and then tested. If it
is refused, the sequence picks again from what the grammar allows: of the 256 likeliest tokens
and the end tokens; if that is nothing, of the 4,096 and 32,768 likeliest, and then of all. So a
filter such as top-k cuts what is allowed, and a refused token costs a draw.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from math import isfinite
from time import perf_counter

import numpy as np
import numpy.typing as npt

from runnerd.core.batch import Sampled, SampleFault, Sampling
from runnerd.engine.base import Decoded
from runnerd.engine.llama.candidates import Candidates, Row, Tokens, best
from runnerd.engine.llama.chain import Chain
from runnerd.engine.llama.grammar import Constraint, Grammar
from runnerd.engine.llama.grammar_walk import MOST_S, Budget, GrammarTooSlow
from runnerd.engine.llama.sampler_history import Adjustment
from runnerd.engine.llama.sampler_logprobs import RawDistribution
from runnerd.engine.llama.sampler_selection import few

GRAMMAR_TIERS = (256, 4096, 32_768)  # a grammar looks at each token for 0.1 us or more

Rows = npt.NDArray[np.float32]


class Samplers:
    """The open samplers, by sequence. One call at a time."""

    def __init__(self, n_vocab: int, end_tokens: Sequence[int] = (), vocab: int = 0) -> None:
        self._n_vocab = n_vocab
        self._end_tokens = np.array(end_tokens, np.int32)
        self._vocab = vocab
        self._candidates = Candidates(n_vocab)
        self._scratch: Row = np.empty(n_vocab, np.float32)
        self._samplers: dict[int, _Sampler] = {}

    def open(self, seq_id: int, sampling: Sampling, history: tuple[int, ...]) -> None:
        """Make a sequence's sampler, with the tokens that its penalties look back on."""
        assert seq_id not in self._samplers, f"sequence {seq_id} has a sampler"
        adjustment = Adjustment(sampling, self._end_tokens.tolist(), history, self._vocab)
        chain = Chain(sampling, self._n_vocab) if sampling.temperature > 0.0 else None
        self._samplers[seq_id] = _Sampler(sampling, chain, adjustment)

    def close(self, seq_id: int) -> None:
        """Free a sequence's sampler."""
        self._samplers.pop(seq_id).free()

    def close_all(self) -> None:
        """Free every sampler."""
        for seq_id in tuple(self._samplers):
            self.close(seq_id)

    def sample(self, seq_ids: Sequence[int], rows: Rows) -> Decoded:
        """Pick the next token of each sequence from its row of logits.

        A row that gives no token costs the other rows nothing, and its sequence no draw, unless
        it was its grammar that left nothing. A row is as it was when this returns.
        """
        sampled: list[Sampled] = []
        sampling_s: list[float] = []
        for seq_id, row in zip(seq_ids, rows, strict=True):
            began_at = perf_counter()
            sampled.append(self._pick(self._samplers[seq_id], row))
            sampling_s.append(perf_counter() - began_at)
        return Decoded(tuple(sampled), tuple(sampling_s))

    def _pick(self, sampler: "_Sampler", row: Row) -> Sampled:
        likeliest = int(row.argmax())  # of a NaN, where there is one
        if not isfinite(row[likeliest]):
            return SampleFault(f"the largest logit is {row[likeliest]}", spoils_slot=True)
        n_logprobs = sampler.sampling.n_logprobs
        raw = None if n_logprobs is None else RawDistribution(row, n_logprobs, self._scratch)
        adjustment = sampler.adjustment
        with adjustment.applied(row) if adjustment.changes_logits else nullcontext():
            token = self._choose(sampler, row, likeliest)
        if isinstance(token, SampleFault):
            return token
        adjustment.accept(token)
        return token if raw is None else raw.of(token)

    def _choose(self, sampler: "_Sampler", row: Row, likeliest: int) -> int | SampleFault:
        if sampler.adjustment.changes_logits:
            likeliest = int(row.argmax())
            if not isfinite(row[likeliest]):
                return SampleFault(f"with biases and penalties the largest is {row[likeliest]}")
        if sampler.chain is None:
            token = likeliest
        else:
            token = self._draw(sampler.chain, row, few(sampler.sampling, row))
        if sampler.grammar is None:
            return token
        return self._constrained(sampler, sampler.grammar, row, token)

    def _draw(self, chain: Chain, row: Row, ids: Tokens | None) -> int:
        n_candidates = self._candidates.put(row, ids)
        assert n_candidates > 0, "a chain with nothing to choose from"
        self._candidates.apply(chain.pointer)
        return self._candidates.selected

    def _constrained(
        self, sampler: "_Sampler", grammar: Grammar, row: Row, token: int
    ) -> int | SampleFault:
        budget = grammar.budget
        budget.restart()
        try:
            if not grammar.allows(token, budget):
                allowed = self._allowed(grammar, row, budget)
                if allowed.size == 0:
                    return self._ignored_end(sampler, grammar, budget)
                if sampler.chain is None:
                    token = int(allowed[row[allowed].argmax()])
                else:
                    token = self._draw(sampler.chain, row, allowed)
            if token not in self._end_tokens:
                grammar.accept(token)
            budget.check()
        except GrammarTooSlow:
            return SampleFault(f"the grammar took more than {MOST_S} s for a token")
        return token

    def _allowed(self, grammar: Grammar, row: Row, budget: Budget) -> Tokens:
        for n_best in (*GRAMMAR_TIERS, self._n_vocab):
            ids = best(row, n_best)
            if n_best < self._n_vocab:
                ids = np.union1d(ids, self._end_tokens)
            ids = grammar.among(self._candidates, row, ids, budget)
            if ids.size:
                break
        return ids

    def _ignored_end(
        self, sampler: "_Sampler", grammar: Grammar, budget: Budget
    ) -> int | SampleFault:
        """Return the end token where nothing else is left, though it is to be ignored."""
        sampling = sampler.sampling
        if sampling.ignore_end:
            banned = {token for token, bias in sampling.logit_bias if bias == -np.inf}
            for token in self._end_tokens.tolist():
                if token not in banned and grammar.allows(token, budget):
                    return int(token)
        return SampleFault("the grammar allows no token")


class _Sampler:
    """What belongs to one sequence."""

    def __init__(self, sampling: Sampling, chain: Chain | None, adjustment: Adjustment) -> None:
        self.sampling = sampling
        self.chain = chain
        self.adjustment = adjustment
        constraint = sampling.constraint
        assert constraint is None or isinstance(constraint, Constraint)
        self.grammar = None if constraint is None else Grammar(constraint)

    def free(self) -> None:
        if self.chain is not None:
            self.chain.free()
        if self.grammar is not None:
            self.grammar.free()
