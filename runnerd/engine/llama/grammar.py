"""Grammars: compiled in any thread, tested token by token on the engine's.

llama.cpp ends the process when it accepts a token that a grammar does not allow, so a token is
tested first. It cannot be stopped while it compiles, so everything that would take it long is
refused before (`grammar_text`, `grammar_rules`, `grammar_schema`).
"""

import ctypes
import weakref
from functools import cached_property
from math import isinf

import numpy as np
import numpy.typing as npt

from runnerd.engine.base import ConstraintKind
from runnerd.engine.llama.candidates import Candidates, Row, Tokens
from runnerd.engine.llama.grammar_schema import schema_grammar
from runnerd.engine.llama.grammar_text import check_grammar
from runnerd.engine.llama.library import lib
from runnerd.errors import BadGrammar

# To refuse a token takes llama.cpp as long as there are ways to read it, and in an ambiguous
# grammar these multiply with each character. The same text can be said in shorter tokens.
MAX_PIECE_BYTES = 16


class Constraint:
    """A compiled grammar, from which sequences take copies. Freed with the last reference.

    `unfit` says of each token whether it adds nothing to the text (a grammar takes the name of a
    control token for text), or more than a grammar looks at.
    """

    def __init__(self, pointer: ctypes.c_void_p, unfit: npt.NDArray[np.bool_]) -> None:
        self.pointer = pointer
        self.unfit = unfit
        weakref.finalize(self, lib.llama_sampler_free, pointer).atexit = False


class GrammarCompiler:
    """Makes constraints for a vocabulary. Safe to call from any thread."""

    def __init__(self, vocab: int, n_vocab: int) -> None:
        self._vocab, self._n_vocab = vocab, n_vocab

    def compile(self, kind: ConstraintKind, text: str) -> Constraint:
        """Compile a grammar or JSON schema.

        Raises:
            BadGrammar: it is malformed or too large, and where.
        """
        start = "root"
        if kind == "json_schema":
            text, start = schema_grammar(text)
        check_grammar(text, start)
        pointer = lib.llama_sampler_init_grammar(self._vocab, text.encode(), start.encode())
        if not pointer:  # never None
            raise BadGrammar("llama.cpp refuses the grammar")
        return Constraint(pointer, self._unfit)

    @cached_property
    def _unfit(self) -> npt.NDArray[np.bool_]:
        unfit = np.zeros(self._n_vocab, np.bool_)
        piece = ctypes.create_string_buffer(MAX_PIECE_BYTES)
        for token in range(self._n_vocab):
            # Less than 0: so many bytes would be needed.
            if lib.llama_token_to_piece(self._vocab, token, piece, len(piece), 0, False) <= 0:
                unfit[token] = not lib.llama_vocab_is_eog(self._vocab, token)
        return unfit


class Grammar:
    """How far a sequence is in its grammar."""

    def __init__(self, constraint: Constraint) -> None:
        self._unfit = constraint.unfit
        self._pointer = lib.llama_sampler_clone(constraint.pointer)
        assert self._pointer, "llama.cpp made no copy"
        self._candidate = lib.llama_token_data()
        self._array = lib.llama_token_data_array(ctypes.pointer(self._candidate), 1, -1, False)
        self._reference = ctypes.byref(self._array)

    def allows(self, token: int) -> bool:
        """Whether the token may come next; an end token, if the text is complete."""
        if self._unfit[token]:
            return False
        self._candidate.id, self._candidate.logit = token, 0.0
        lib.llama_sampler_apply(self._pointer, self._reference)
        return not isinf(self._candidate.logit)

    def among(self, candidates: Candidates, row: Row, ids: Tokens) -> Tokens:
        """Return those of the tokens, possible by the row, that may come next."""
        if candidates.put(row, ids[~self._unfit[ids]]):
            candidates.apply(self._pointer)
        return candidates.possible()

    def accept(self, token: int) -> None:
        """Go on behind a token that is no end token, and of which `allows` has just been true."""
        lib.llama_sampler_accept(self._pointer, token)

    def free(self) -> None:
        """Free the copy."""
        lib.llama_sampler_free(self._pointer)
