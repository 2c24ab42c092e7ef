"""Sets of characters, as bits: each that a grammar names has its own, up to a limit."""

import re
from bisect import bisect_right

from runnerd.engine.llama.grammar_tokens import CHARACTER, code

N_LATIN = 255  # that have a bit in any grammar
MOST_OTHERS = 8192  # borders between other characters that are told apart

LONG_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})")


class Alphabet:
    """The bits of a grammar's characters."""

    def __init__(self, text: str) -> None:
        """Find the characters of a grammar that need a bit of their own."""
        named = {
            code(match) for match in re.findall(r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})", text)
        }
        named |= set(map(ord, set(text)))
        borders = {border for one in named if one >= N_LATIN for border in (one, one + 1)}
        self._borders = sorted(borders)[:MOST_OTHERS]
        self._last = N_LATIN + len(self._borders)
        self.every = (2 << self._last) - 1

    def first_of(self, literal: str) -> int:
        """Return the bit of the first character of a literal, which has one."""
        first = CHARACTER.match(literal, 1)
        assert first is not None, "a literal with a wrong escape"
        return self._range(code(first.group()), code(first.group()))

    def of_set(self, text: str) -> int:
        """Return the bits of a set."""
        is_negated = text.startswith("[^")
        names = CHARACTER.findall(text, 2 if is_negated else 1, len(text) - 1)
        mask, at = 0, 0
        while at < len(names):
            is_range = at + 2 < len(names) and names[at + 1] == "-"
            mask |= self._range(code(names[at]), code(names[at + 2 if is_range else at]))
            at += 3 if is_range else 1
        if is_negated:  # of those beyond the last border there are always some left
            mask = self.every & ~mask | 1 << self._last
        return mask

    def _range(self, first: int, last: int) -> int:
        low, high = self._bit(first), self._bit(last)
        return (2 << high) - (1 << low) if first <= last else 0

    def _bit(self, character: int) -> int:
        if character < N_LATIN:
            return character
        return N_LATIN + bisect_right(self._borders, character)
