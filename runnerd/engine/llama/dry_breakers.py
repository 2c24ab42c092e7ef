"""Texts that DRY lets no repetition reach back over, found among a sequence's tokens.

Whether a token has to do with a breaker is found out when the token turns up: a one-letter
breaker is in a third of a large vocabulary.

Source: llama.cpp, src/llama-sampler.cpp, get_overlapping_token_sequences.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from runnerd.engine.llama.library import lib

MAX_BREAKER_BYTES = 40
MAX_TAIL = 20  # tokens
N_KNOWN = 4096  # tokens to remember; most sequences say fewer
TEXT_BYTES = 256  # holds most tokens; a longer one is asked for again

Tail = tuple[int, ...]


class Breakers:
    """The breakers of one sequence, as a vocabulary writes them."""

    def __init__(self, texts: Sequence[str], vocab: int) -> None:
        # C strings: of a breaker with a NUL the part before it counts.
        cut = [text.encode(errors="replace").split(b"\0")[0] for text in texts]
        self._texts = [text[:MAX_BREAKER_BYTES] for text in dict.fromkeys(cut) if text]
        assert vocab or not self._texts, "breakers take a vocabulary"
        self._vocab = vocab
        self._begun: dict[bytes, list[bytes]] = {}  # by how a breaker can begin: the breakers
        for text in self._texts:
            for n_bytes in range(1, len(text)):
                self._begun.setdefault(text[:n_bytes], []).append(text)
        self._tails = lru_cache(N_KNOWN)(self._find_tails)
        self._buffer = ctypes.create_string_buffer(TEXT_BYTES)
        self.n_tail_most = MAX_TAIL if any(len(text) > 1 for text in self._texts) else 0

    def holds_one(self, token: int) -> bool:
        """Whether there is a whole breaker in a token."""
        return bool(self._texts) and () in self._tails(token)

    def last(self, tokens: Sequence[int], n_back: int) -> tuple[int, int] | None:
        """Return how far back the last breaker begins, and how many more tokens it takes.

        It is looked for from the end of `tokens`, where 0 is the last one, to `n_back` - 1.
        """
        if not self._texts:
            return None
        n_tokens = len(tokens)
        for back in range(min(n_back, n_tokens)):
            behind = tokens[n_tokens - back : n_tokens - back + MAX_TAIL]
            tails = self._tails(tokens[n_tokens - 1 - back])
            ended = [len(tail) for tail in tails if tail == tuple(behind[: len(tail)])]
            if ended:
                return back, max(ended)
        return None

    def _find_tails(self, token: int) -> tuple[Tail, ...]:
        """Return what has to follow a token for a breaker to be complete; () if it holds one."""
        text = self._text(token)
        tails: dict[Tail, None] = {}
        if any(breaker in text for breaker in self._texts):
            tails[()] = None
        for n_bytes in range(1, min(MAX_BREAKER_BYTES - 1, len(text)) + 1):
            for breaker in self._begun.get(text[-n_bytes:], ()):
                if breaker not in text:
                    tails[self._tokens(breaker[n_bytes:])] = None
        return tuple(tails)

    def _text(self, token: int) -> bytes:
        one = (ctypes.c_int32 * 1)(token)
        while True:
            buffer = self._buffer
            n_bytes: int = lib.llama_detokenize(
                self._vocab, one, 1, buffer, len(buffer), False, True
            )
            if n_bytes >= 0:
                return buffer.raw[:n_bytes]
            self._buffer = ctypes.create_string_buffer(-n_bytes)

    def _tokens(self, text: bytes) -> Tail:
        tokens = np.empty(len(text) + 8, np.int32)  # at worst a token per byte
        pointer = tokens.ctypes.data_as(lib.llama_token_p)
        n_tokens: int = lib.llama_tokenize(
            self._vocab, text, len(text), pointer, tokens.size, False, False
        )
        assert n_tokens >= 0, f"{len(text)} bytes are {-n_tokens} tokens"
        return tuple(tokens[: min(n_tokens, MAX_TAIL)].tolist())
