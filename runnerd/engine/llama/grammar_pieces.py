"""The texts of a vocabulary's tokens, as grammars look at them: byte by byte."""

import ctypes
from itertools import count, repeat

import numpy as np
import numpy.typing as npt

from runnerd.engine.llama.candidates import Tokens
from runnerd.engine.llama.library import lib

MAX_BYTES = 16  # of a token that a grammar takes: the same text can be said in shorter ones

# With an address, as the binding has it only for buffers.
_piece = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_bool,
)(ctypes.cast(lib.llama_token_to_piece, ctypes.c_void_p).value or 0)

Flags = npt.NDArray[np.bool_]


class Pieces:
    """What each token adds to a text, up to `MAX_BYTES`.

    `unfit` says of each token whether it adds nothing (a grammar takes the name of a control
    token for text), or more than that; end tokens are fit. `text` is of shape (n_vocab,
    MAX_BYTES), `lengths` 0 for an end token. `of_byte` holds the token that is one byte; -1: none.
    """

    def __init__(self, vocab: int, n_vocab: int) -> None:
        every = range(n_vocab)
        self.text: npt.NDArray[np.uint8] = np.zeros((n_vocab, MAX_BYTES), np.uint8)
        ends = map(lib.llama_vocab_is_eog, repeat(vocab), every)
        is_end: Flags = np.fromiter(ends, np.bool_, n_vocab)
        # Written where it belongs; less than 0: so many bytes would be needed.
        places = count(self.text.ctypes.data, MAX_BYTES)
        lengths = map(
            _piece, repeat(vocab), every, places, repeat(MAX_BYTES), repeat(0), repeat(False)
        )
        self.lengths: npt.NDArray[np.int32] = np.fromiter(lengths, np.int32, n_vocab)
        self.unfit: Flags = (self.lengths <= 0) & ~is_end
        self.lengths[is_end | self.unfit] = 0
        self.of_byte: Tokens = np.full(256, -1, np.int32)
        single = np.flatnonzero(self.lengths == 1)[::-1]
        self.of_byte[self.text[single, 0]] = single
