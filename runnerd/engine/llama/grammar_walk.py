"""Tells which tokens a grammar takes, without the time that llama.cpp may need for it.

To refuse a token, llama.cpp tries every way to read it, and in an ambiguous grammar these
multiply with each character: no limit on a grammar keeps that short, and nothing stops it. But
what it has accepted it keeps as a set of places, in which ways that come together are one. So a
long token is tested here one byte after another, on a copy that accepts each byte before the
next is tested; tokens that begin alike share that.
"""

import ctypes
from math import isinf
from time import thread_time

import numpy as np
import numpy.typing as npt

from runnerd.engine.llama.candidates import Candidates, Tokens
from runnerd.engine.llama.grammar_pieces import MAX_BYTES, Flags, Pieces
from runnerd.engine.llama.library import lib

SHORT_BYTES = 1  # of tokens that are tested whole: already 2 took a second in a nasty grammar
MOST_S = 0.15  # of CPU to find a token; to accept it, all its bytes in one call, takes that again
SHORT_S = 0.00005  # of CPU for a byte; usually 10 us; no more than so is taken for few places


class GrammarTooSlow(Exception):
    """A grammar took too long for a token."""


class Budget:
    """The CPU time that a token may still take.

    A call cannot be stopped, so it is not begun where those before let one expect too much.
    """

    def __init__(self, n_ways: int) -> None:
        """Begin with a grammar that has at most so many ways on behind each character."""
        self._growth = n_ways**2  # places are compared with each other
        self._ends_at = 0.0
        self._expected_s = 0.0  # of the next call

    def restart(self) -> None:
        """Begin a token; what its first call may take is known from the one before."""
        self._ends_at = thread_time() + MOST_S

    def check(self) -> None:
        """Raise GrammarTooSlow when it is spent, or would be behind the next byte.

        Where the next character decides there is one place, and nothing that grows.
        """
        if self._growth > 1 and thread_time() + self._expected_s > self._ends_at:
            raise GrammarTooSlow

    def accept(self, state: ctypes.c_void_p, token: int) -> None:
        """Let a state accept a token, if there is time for it."""
        self.check()
        began_at = thread_time()
        lib.llama_sampler_accept(state, token)
        took_s = thread_time() - began_at
        self._expected_s = took_s * self._growth if took_s > SHORT_S else 0.0


class Walk:
    """Tests tokens at the place where a grammar is. Changes nothing there."""

    def __init__(self, pieces: Pieces, *, is_decided: bool) -> None:
        """Walk over these texts; `is_decided`: no need to, there is one way to read each."""
        self._pieces = pieces
        self._n_short = MAX_BYTES if is_decided else SHORT_BYTES
        self._candidate = lib.llama_token_data()
        self._array = lib.llama_token_data_array(ctypes.pointer(self._candidate), 1, -1, False)
        self._reference = ctypes.byref(self._array)

    def takes(self, state: ctypes.c_void_p, token: int, budget: Budget) -> bool:
        """Whether a token that is not unfit may come next."""
        if self._pieces.lengths[token] <= self._n_short:
            return self._takes_whole(state, token)
        return self._takes_rest(state, token, 0, budget)

    def those(
        self, state: ctypes.c_void_p, ids: Tokens, candidates: Candidates, budget: Budget
    ) -> Tokens:
        """Return those of the tokens that may come next, ascending; none of them is unfit."""
        if self._n_short > SHORT_BYTES:
            # Usually few of the bytes fit that so many tokens begin with; some have no token.
            may_fit = self._fitting(state, ids, 0, candidates) | (self._pieces.of_byte < 0)
            is_end = self._pieces.lengths[ids] == 0
            ids = ids[may_fit[self._pieces.text[ids, 0]] | is_end]
            return np.sort(self._short(state, ids, candidates))
        lengths = self._pieces.lengths[ids]
        is_short = lengths <= self._n_short
        taken = [self._short(state, ids[is_short], candidates)]
        waiting = [(lib.llama_sampler_clone(state), ids[~is_short], 0)]
        try:
            while waiting:
                here, some, depth = waiting.pop()
                try:
                    ended, onward = self._byte(here, some, depth, candidates)
                    taken.append(ended)
                    for byte, group in onward:
                        if group.size == 1:
                            token = int(group[0])
                            if self._takes_rest(here, token, depth, budget):
                                taken.append(group)
                            continue
                        there = lib.llama_sampler_clone(here)
                        waiting.append((there, group, depth + 1))
                        budget.accept(there, byte)
                finally:
                    lib.llama_sampler_free(here)
        finally:
            for here, _, _ in waiting:
                lib.llama_sampler_free(here)
        return np.sort(np.concatenate(taken))

    def _byte(
        self, state: ctypes.c_void_p, ids: Tokens, depth: int, candidates: Candidates
    ) -> tuple[Tokens, list[tuple[int, Tokens]]]:
        """Test one byte of the tokens.

        Returns:
            Those that end there, and by that byte's token those that go on.
        """
        fits = self._fitting(state, ids, depth, candidates)
        ids = ids[fits[self._pieces.text[ids, depth]]]
        goes_on = self._pieces.lengths[ids] > depth + 1
        ended, ids = ids[~goes_on], ids[goes_on]
        bytes_here = self._pieces.text[ids, depth]
        groups = [(byte, ids[bytes_here == byte]) for byte in _distinct(bytes_here).tolist()]
        return ended, [(int(self._pieces.of_byte[byte]), group) for byte, group in groups]

    def _fitting(
        self, state: ctypes.c_void_p, ids: Tokens, depth: int, candidates: Candidates
    ) -> Flags:
        """Tell of each byte whether tokens have it there and it may come next."""
        tokens = self._pieces.of_byte[_distinct(self._pieces.text[ids, depth])]
        fitting = self._short(state, tokens[tokens >= 0], candidates)
        fits = np.zeros(256, np.bool_)
        fits[self._pieces.text[fitting, 0]] = True
        return fits

    def _short(self, state: ctypes.c_void_p, ids: Tokens, candidates: Candidates) -> Tokens:
        if candidates.put_equals(ids) == 0:
            return ids
        candidates.apply(state)
        return candidates.possible()

    def _takes_rest(self, state: ctypes.c_void_p, token: int, depth: int, budget: Budget) -> bool:
        """Whether a token may come next of which `depth` bytes are accepted."""
        rest = self._pieces.text[token, depth : self._pieces.lengths[token]]
        *first, last = self._pieces.of_byte[rest].tolist()
        here = lib.llama_sampler_clone(state)
        try:
            for byte in first:
                if byte < 0 or not self._takes_whole(here, byte):
                    return False
                budget.accept(here, byte)
            return last >= 0 and self._takes_whole(here, last)
        finally:
            lib.llama_sampler_free(here)

    def _takes_whole(self, state: ctypes.c_void_p, token: int) -> bool:
        self._candidate.id, self._candidate.logit = token, 0.0
        lib.llama_sampler_apply(state, self._reference)
        return not isinf(self._candidate.logit)


def _distinct(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.bincount(values, minlength=256))
