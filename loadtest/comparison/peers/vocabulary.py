"""A model's tokens without its weights, for peers that cannot be asked for them."""

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp as lib

from loadtest.comparison.exchange import PeerUnavailable

logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # says what it loads otherwise

MOST_TOKENS_PER_BYTE = 2  # some vocabularies have marks before a text, none has more than that


class Vocabulary:
    """The tokens of a model."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        bos, wants_bos = lib.llama_vocab_bos(vocab), lib.llama_vocab_get_add_bos(vocab)
        self.begin: list[int] = [bos] if wants_bos else []
        self.ends: list[int] = [
            token
            for token in range(lib.llama_vocab_n_tokens(vocab))
            if lib.llama_vocab_is_eog(vocab, token)
        ]

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without a begin token."""
        encoded = text.encode()
        tokens = (ctypes.c_int32 * (MOST_TOKENS_PER_BYTE * len(encoded) + 1))()
        n_tokens: int = lib.llama_tokenize(
            self._vocab, encoded, len(encoded), tokens, len(tokens), False, False
        )
        return tokens[:n_tokens]


@contextmanager
def vocabulary(model: Path) -> Iterator[Vocabulary]:
    """Open the vocabulary of a model's file.

    Raises:
        PeerUnavailable: llama.cpp cannot read it.
    """
    params = lib.llama_model_default_params()
    params.vocab_only = True
    loaded: int | None = lib.llama_model_load_from_file(os.fsencode(model), params)
    if not loaded:
        raise PeerUnavailable(f"llama.cpp cannot read the vocabulary of {model}")
    try:
        yield Vocabulary(lib.llama_model_get_vocab(loaded))
    finally:
        lib.llama_model_free(loaded)
