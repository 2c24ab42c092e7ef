"""A model's vocabulary: text to tokens and back. Only reads, so safe from any thread."""

import ctypes
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import compress, repeat

import numpy as np
import numpy.typing as npt

from runnerd.core.parts import encoded, joined
from runnerd.core.prompt import Group, ImagePart, Part, Prompt, TextPart, TokensPart
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.picture import PictureOf
from runnerd.errors import InvalidRequest, Unsupported

MAX_TEXT_BYTES = 1 << 30  # llama.cpp counts in int32, and ends the process on overflow
# Where names of tokens are looked for, the time grows with the square of how many are found: at
# most some seconds for so much text at a time.
MAX_SCANNED_BYTES = 1 << 17
PIECE_SCANNED_BYTES = 1 << 10  # to call for less costs more than it saves
PIECE_BYTES = 64  # holds most tokens; a longer one is asked for again

Tokens = npt.NDArray[np.int32]


class Vocabulary:
    """The tokens of a loaded model; not to be used after the model is freed."""

    def __init__(self, model: int) -> None:
        self._vocab = lib.llama_model_get_vocab(model)
        self.n_tokens: int = lib.llama_vocab_n_tokens(self._vocab)
        bos: int = lib.llama_vocab_bos(self._vocab)
        self.bos = bos if bos >= 0 else None
        self.adds_bos: bool = bos >= 0 and lib.llama_vocab_get_add_bos(self._vocab)
        eos: int = lib.llama_vocab_eos(self._vocab)
        self.eos = eos if eos >= 0 else None
        every = range(self.n_tokens)
        ends = compress(every, map(lib.llama_vocab_is_eog, repeat(self._vocab), every))
        self.end_tokens = tuple(ends)
        self._ends = frozenset(self.end_tokens)
        self._pieces: list[bytes | None] = [None] * self.n_tokens

    def expand(
        self, parts: Sequence[Part], picture_of: PictureOf | None = None, *, add_bos: bool = True
    ) -> Prompt:
        """Turn a request's parts into inputs, as `Tokenizer.expand` says."""
        inputs: list[int] = []
        groups: list[Group] = []
        borders: list[int] = []
        for part in joined(parts, self.n_tokens):
            match part:
                case TextPart(text, special):
                    if special:
                        borders.append(len(inputs))
                    inputs.extend(self._tokenize(text, special))
                case TokensPart(tokens):
                    inputs.extend(tokens)
                case ImagePart(media_id, width, height):
                    if picture_of is None:
                        raise Unsupported("the model reads no images")
                    picture = picture_of(width, height)
                    groups.extend(picture.groups(media_id, len(inputs)))
                    inputs.extend(picture.inputs(media_id))
        n_bos = 0
        if add_bos and self.adds_bos and self.bos is not None and inputs[:1] != [self.bos]:
            inputs.insert(0, self.bos)
            n_bos = 1
        return Prompt(
            tuple(inputs),
            tuple(group.moved(n_bos) for group in groups),
            tuple(n_bos + border for border in borders if border > 0),
        )

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
        found: list[int] = []
        for piece in self._pieces_of(data, special):
            tokens = self._tokenize_piece(piece, special)
            if not special:
                self._refuse_control(tokens)
            found += tokens.tolist()
        return found

    @cached_property
    def _named(self) -> frozenset[bytes]:
        """The texts of tokens that are looked for in plain text before anything is merged."""
        every = range(self.n_tokens)
        attributes = map(lib.llama_vocab_get_attr, repeat(self._vocab), every)
        return frozenset(
            lib.llama_vocab_get_text(self._vocab, token)
            for token, attribute in zip(every, attributes, strict=True)
            if attribute & lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        )

    @cached_property
    def _line_end(self) -> re.Pattern[bytes] | None:
        """Where a text can be cut without its tokens becoming others.

        That is behind line feeds which are tokens by name, as long as no name goes on there.
        """
        goes_on = re.compile(rb"\n[^\n]")
        if b"\n" not in self._named or any(map(goes_on.search, self._named)):
            return None
        return re.compile(rb"\n(?!\n)")

    def _pieces_of(self, data: bytes, special: bool) -> Iterator[bytes]:
        """Cut a long text, where the tokenizer would take too long over all of it.

        Raises:
            InvalidRequest: there is no place to cut it.
        """
        if len(data) <= PIECE_SCANNED_BYTES or not (special or self._named):
            yield data
            return
        start = 0
        while start < len(data):
            at = start + PIECE_SCANNED_BYTES
            end = self._line_end and self._line_end.search(data, at)
            stop = end.end() if end else len(data)
            if stop - start > MAX_SCANNED_BYTES:
                raise InvalidRequest(
                    "prompt",
                    f"a text of {stop - start} bytes that cannot be tokenized in pieces",
                    f"at most {MAX_SCANNED_BYTES} bytes of special text, or in a line",
                )
            yield data[start:stop]
            start = stop

    def _tokenize_piece(self, data: bytes, special: bool) -> Tokens:
        tokens = np.empty(len(data) + 8, np.int32)  # at worst a token per byte
        count = self._tokenize_into(tokens, data, special)
        if count < 0:  # except where the tokenizer's normal form of the text is longer
            tokens = np.empty(-count, np.int32)
            count = self._tokenize_into(tokens, data, special)
        return tokens[:count]

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
