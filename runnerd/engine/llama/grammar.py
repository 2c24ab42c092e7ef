"""Grammars: compiled in any thread, tested token by token on the engine's.

llama.cpp ends the process when it accepts a token that a grammar does not allow, so a token is
tested first. It cannot be stopped while it compiles, so everything that would take it long is
refused before (`grammar_check`, `grammar_schema`).
"""

import ctypes
import weakref
from collections import OrderedDict
from functools import cached_property
from threading import Lock

from runnerd.engine.base import ConstraintKind
from runnerd.engine.llama.candidates import Candidates, Row, Tokens
from runnerd.engine.llama.grammar_check import check_grammar
from runnerd.engine.llama.grammar_pieces import Pieces
from runnerd.engine.llama.grammar_schema import schema_grammar
from runnerd.engine.llama.grammar_walk import Budget, Walk
from runnerd.engine.llama.library import lib
from runnerd.errors import BadGrammar

MOST_CACHED = 32  # compiled, one can take 2 MiB
MOST_CACHED_CHARACTERS = 2**20  # of their texts


class Constraint:
    """A compiled grammar, from which sequences take copies. Freed with the last reference.

    `n_ways` is how many ways on there can be behind a character; 1: the next one decides.
    """

    def __init__(self, pointer: ctypes.c_void_p, pieces: Pieces, *, n_ways: int) -> None:
        self.pointer = pointer
        self.n_ways = n_ways
        self.pieces = pieces
        weakref.finalize(self, lib.llama_sampler_free, pointer).atexit = False


class GrammarCompiler:
    """Makes constraints for a vocabulary, and keeps the last. Safe to call from any thread."""

    def __init__(self, vocab: int, n_vocab: int) -> None:
        self._vocab, self._n_vocab = vocab, n_vocab
        self._lock = Lock()  # of what follows
        self._cached: OrderedDict[tuple[ConstraintKind, str], Constraint] = OrderedDict()
        self._n_characters = 0

    def compile(self, kind: ConstraintKind, text: str) -> Constraint:
        """Compile a grammar or JSON schema.

        Raises:
            BadGrammar: it is malformed or too large, and where.
        """
        with self._lock:
            constraint = self._cached.get((kind, text))
            if constraint is not None:
                self._cached.move_to_end((kind, text))
                return constraint
        constraint = self._compiled(kind, text)
        with self._lock:
            self._keep((kind, text), constraint)
        return constraint

    def _compiled(self, kind: ConstraintKind, text: str) -> Constraint:
        start = "root"
        if kind == "json_schema":
            text, start = schema_grammar(text)
        checked = check_grammar(text, start)
        pointer = lib.llama_sampler_init_grammar(self._vocab, checked.text.encode(), start.encode())
        if not pointer:  # never None
            raise BadGrammar("llama.cpp refuses the grammar")
        return Constraint(pointer, self._pieces, n_ways=checked.n_ways)

    def _keep(self, key: tuple[ConstraintKind, str], constraint: Constraint) -> None:
        if key in self._cached:  # another thread was faster
            return
        self._cached[key] = constraint
        self._n_characters += len(key[1])
        while len(self._cached) > MOST_CACHED or self._n_characters > MOST_CACHED_CHARACTERS:
            (_, oldest), _ = self._cached.popitem(last=False)
            self._n_characters -= len(oldest)

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces(self._vocab, self._n_vocab)


class Grammar:
    """How far a sequence is in its grammar, and the time it may take."""

    def __init__(self, constraint: Constraint) -> None:
        self.budget = Budget(constraint.n_ways)
        self._unfit = constraint.pieces.unfit
        self._walk = Walk(constraint.pieces, is_decided=constraint.n_ways == 1)
        self._pointer = lib.llama_sampler_clone(constraint.pointer)
        assert self._pointer, "llama.cpp made no copy"

    def allows(self, token: int, budget: Budget) -> bool:
        """Whether the token may come next; an end token, if the text is complete.

        Raises:
            GrammarTooSlow: the budget is spent.
        """
        return not self._unfit[token] and self._walk.takes(self._pointer, token, budget)

    def among(self, candidates: Candidates, row: Row, ids: Tokens, budget: Budget) -> Tokens:
        """Return those of the tokens, possible by the row, that may come next.

        Raises:
            GrammarTooSlow: the budget is spent.
        """
        ids = ids[~self._unfit[ids] & (row[ids] > -float("inf"))]
        return self._walk.those(self._pointer, ids, candidates, budget)

    def accept(self, token: int) -> None:
        """Go on behind a token that is no end token, and of which `allows` has just been true.

        Raises:
            GrammarTooSlow: the budget is spent.
        """
        self.budget.accept(self._pointer, token)

    def free(self) -> None:
        """Free the copy."""
        lib.llama_sampler_free(self._pointer)
