"""A model's vocabulary: text to tokens and back. Only reads, so safe from any thread."""

import ctypes
from collections.abc import Sequence
from itertools import compress, repeat

import numpy as np
import numpy.typing as npt

from runnerd.core.parts import encoded, joined
from runnerd.core.prompt import Part, Prompt, TextPart, TokensPart
from runnerd.engine.llama.library import lib
from runnerd.errors import InvalidRequest

MAX_TEXT_BYTES = 1 << 30  # llama.cpp counts in int32, and ends the process on overflow
PIECE_BYTES = 64  # holds most tokens; a longer one is asked for again

Tokens = npt.NDArray[np.int32]


class Vocabulary:
    """The tokens of a loaded model; not to be used after the model is freed."""

    def __init__(self, model: int) -> None:
        self._vocab = lib.llama_model_get_vocab(model)
        self.n_tokens: int = lib.llama_vocab_n_tokens(self._vocab)
        bos: int = lib.llama_vocab_bos(self._vocab)
        self.bos = bos if bos >= 0 and lib.llama_vocab_get_add_bos(self._vocab) else None
        every = range(self.n_tokens)
        ends = compress(every, map(lib.llama_vocab_is_eog, repeat(self._vocab), every))
        self.end_tokens = tuple(ends)
        self._ends = frozenset(self.end_tokens)
        self._pieces: list[bytes | None] = [None] * self.n_tokens

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """Turn a request's parts into inputs, as `Tokenizer.expand` says."""
        inputs: list[int] = []
        for part in joined(parts, self.n_tokens):
            match part:
                case TextPart(text, special):
                    inputs.extend(self._tokenize(text, special))
                case TokensPart(tokens):
                    inputs.extend(tokens)
        if add_bos and self.bos is not None and inputs[:1] != [self.bos]:
            inputs.insert(0, self.bos)
        return Prompt(tuple(inputs))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text; none for a control token."""
        # llama.cpp would read out of bounds.
        assert 0 <= token < self.n_tokens, f"token {token} of {self.n_tokens}"
        piece = self._pieces[token]
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return token in self._ends

    def _tokenize(self, text: str, special: bool) -> list[int]:
        data = encoded(text)
        if len(data) > MAX_TEXT_BYTES:
            raise InvalidRequest(
                "prompt", f"text of {len(data)} bytes", f"at most {MAX_TEXT_BYTES} bytes"
            )
        tokens = np.empty(len(data) + 8, np.int32)  # at worst a token per byte
        count = self._tokenize_into(tokens, data, special)
        if count < 0:  # except where the tokenizer's normal form of the text is longer
            tokens = np.empty(-count, np.int32)
            count = self._tokenize_into(tokens, data, special)
        tokens = tokens[:count]
        if not special:
            self._refuse_control(tokens)
        found: list[int] = tokens.tolist()
        return found

    def _tokenize_into(self, tokens: Tokens, data: bytes, special: bool) -> int:
        pointer = tokens.ctypes.data_as(lib.llama_token_p)
        count: int = lib.llama_tokenize(
            self._vocab, data, len(data), pointer, tokens.size, False, special
        )
        return count

    def _refuse_control(self, tokens: Tokens) -> None:
        """Make sure that what a client wrote as plain text steers nothing.

        A tokenizer that merges by looking words up can arrive at a control token's name.
        """
        for token in np.unique(tokens).tolist():
            if lib.llama_vocab_is_control(self._vocab, token):
                raise InvalidRequest(
                    "prompt",
                    f"plain text that this vocabulary writes as token {token}",
                    "text that it writes without control tokens",
                )

    def _read_piece(self, token: int) -> bytes:
        n_bytes = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(n_bytes)
            count: int = lib.llama_token_to_piece(self._vocab, token, buffer, n_bytes, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            n_bytes = -count
