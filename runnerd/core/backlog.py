"""Tokens whose text is not out yet, with what is to be told along with it.

Where a token ends is counted in characters, for bytes do not tell: a character may be made of
the bytes of several tokens, and bytes that are no character become one.
"""

from collections import deque

from runnerd.core.batch import Logprobs
from runnerd.core.detokenizer import Detokenizer


class Backlog:
    """The last tokens of a sequence, in order, each with the characters that it needs out."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Logprobs | None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, detokenizer: Detokenizer, logprobs: Logprobs | None) -> tuple[Logprobs, ...]:
        """Take in the token that was detokenized last; let go of those whose text is out."""
        n_needed, n_out = detokenizer.n_needed, detokenizer.n_out
        if not self._waiting and n_needed <= n_out:  # so it is for most tokens
            return () if logprobs is None else (logprobs,)
        self._waiting.append((n_needed, logprobs))
        return self.release(n_out)

    def release(self, n_out: int) -> tuple[Logprobs, ...]:
        """Let go of the tokens whose text is out, now that so many characters are."""
        told: list[Logprobs] = []
        while self._waiting and self._waiting[0][0] <= n_out:
            _, logprobs = self._waiting.popleft()
            if logprobs is not None:
                told.append(logprobs)
        return tuple(told)
