"""A model's vocabulary: text to tokens and back. Only reads, so safe from any thread."""

import ctypes
from collections.abc import Iterator, Sequence
from itertools import compress, groupby, repeat

import numpy as np
import numpy.typing as npt

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
        for part in _joined(parts):
            match part:
                case TextPart(text, special):
                    inputs.extend(self._tokenize(text, special))
                case TokensPart(tokens):
                    self.check(min(tokens))
                    self.check(max(tokens))
                    inputs.extend(tokens)
        if add_bos and self.bos is not None and inputs[:1] != [self.bos]:
            inputs.insert(0, self.bos)
        return Prompt(tuple(inputs))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text; none for a control token."""
        self.check(token)
        piece = self._pieces[token]
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return token in self._ends

    def check(self, token: int) -> None:
        """Refuse a token that is not in the vocabulary: llama.cpp would read out of bounds."""
        if not 0 <= token < self.n_tokens:
            raise InvalidRequest(
                f"token {token} is outside the vocabulary of {self.n_tokens}",
                token=token,
                n_vocab=self.n_tokens,
            )

    def _tokenize(self, text: str, special: bool) -> list[int]:
        try:
            data = text.encode()
        except UnicodeEncodeError as err:
            raise InvalidRequest(f"text cannot be tokenized: {err}") from err
        if len(data) > MAX_TEXT_BYTES:
            raise InvalidRequest(f"text of {len(data)} bytes, at most {MAX_TEXT_BYTES}")
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
                    f"plain text that this vocabulary can only write as control token {token}",
                    token=token,
                )

    def _read_piece(self, token: int) -> bytes:
        n_bytes = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(n_bytes)
            count: int = lib.llama_token_to_piece(self._vocab, token, buffer, n_bytes, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            n_bytes = -count


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """Join adjoining texts of one kind, so that it does not matter where a client split them."""
    for special, run in groupby(filter(_is_filled, parts), _is_special):
        if special is None:
            yield from run
        else:
            yield TextPart(
                "".join(part.text for part in run if isinstance(part, TextPart)), special
            )


def _is_filled(part: Part) -> bool:
    return bool(part.text if isinstance(part, TextPart) else part.tokens)


def _is_special(part: Part) -> bool | None:
    return part.special if isinstance(part, TextPart) else None
