"""Bytes of tokens in, text out: whole characters, and nothing of a stop string.

The stop string that is complete first ends the text; of several complete at once it is the
longest. So the outcome does not depend on how the bytes are cut into tokens. Text that may be
the start of a stop string is held back until the next bytes decide. What is held is never
longer than the longest stop string less one character, and three bytes of a character.
"""

from codecs import utf_8_decode
from collections import defaultdict
from collections.abc import Sequence


class Detokenizer:
    """Turns one sequence's bytes into text. Bytes that are no character become U+FFFD.

    `n_out` counts the characters that were given out.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped_by: str | None = None
        self.n_out = 0
        self._n_decoded = 0
        self._undecoded = b""  # the beginning of a character
        self._held = ""
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._by_first: defaultdict[str, list[str]] = defaultdict(list)
        for stop in self._stops:
            self._by_first[stop[0]].append(stop)

    def feed(self, data: bytes) -> str:
        """Return the text that is now certain; sets `stopped_by` at a stop string."""
        text = self._decode(data)
        self._n_decoded += len(text)
        if self._stops and text:
            text = self._release(self._held + text)
        self.n_out += len(text)
        return text

    @property
    def n_needed(self) -> int:
        """How many characters have to be out for all bytes that came to be."""
        # One, whatever follows; but half a surrogate is kept, too, and is a character a byte.
        return self._n_decoded + len(self._undecoded.decode("utf-8", "replace"))

    def finish(self) -> str:
        """Return what is held back. The text is at its end; after a stop there is none."""
        if self.stopped_by is not None:
            return ""
        text = self._decode(b"", is_all=True)
        if self._stops:
            text = self._release(self._held + text)
            text, self._held = text + self._held, ""
        self.n_out += len(text)
        return text

    def _decode(self, data: bytes, *, is_all: bool = False) -> str:
        """Do what Python's incremental decoder does, in half the time."""
        if self._undecoded:
            data = self._undecoded + data
        text, n_decoded = utf_8_decode(data, "replace", is_all)
        self._undecoded = data[n_decoded:]
        return text

    def _release(self, text: str) -> str:
        """Cut at the stop string that is complete first, the longest of several, or hold back."""
        found = -1
        end: int | None = None  # longest first, so a shorter one has to end before this
        for stop in self._stops:
            at = text.find(stop, 0, end)
            if at >= 0:
                found, end, self.stopped_by = at, at + len(stop) - 1, stop
        if found >= 0:
            self._held = ""
            return text[:found]
        at = self._hold_from(text)
        self._held = text[at:]
        return text[:at]

    def _hold_from(self, text: str) -> int:
        """Return where the earliest possible start of a stop string lies."""
        for at in range(max(0, len(text) - len(self._stops[0]) + 1), len(text)):
            tail = text[at:]
            if any(stop.startswith(tail) for stop in self._by_first.get(text[at], ())):
                return at
        return len(text)
