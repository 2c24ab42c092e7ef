"""A position in a GGUF file: takes values from it and trusts none of them.

A claimed length is compared with the file's size before anything is read or allocated.
"""

import mmap
import struct

from runnerd.errors import BadModel

MAX_NAME_BYTES = 1 << 16  # the format's bound for a key
MAX_STRING_BYTES = 1 << 20  # the longest chat templates take some ten thousand
MAX_STRINGS = 1 << 24  # each costs a turn of a loop; the largest vocabularies have 2^18

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class GGUFCursor:
    """Takes values one after the other; `part` says what of the file is being read."""

    def __init__(self, path: str, view: mmap.mmap) -> None:
        self._path = path
        self._view = view
        self.size = len(view)
        self.at = 0
        self.part = "the file header"

    def magic(self) -> bytes:
        """Take the first four bytes, or as many as there are."""
        self.at = min(4, self.size)
        return self._view[: self.at]

    def take(self, layout: struct.Struct) -> int:
        """Take one whole number."""
        return int(self.unpack(layout)[0])

    def unpack(self, layout: struct.Struct) -> tuple[int | float, ...]:
        """Take the values of a layout."""
        start = self.at
        self.skip(layout.size)
        return layout.unpack_from(self._view, start)

    def skip(self, n_bytes: int) -> None:
        """Move on, but not out of the file."""
        end = self.at + n_bytes
        if end > self.size:
            raise self._cut(end)
        self.at = end

    def count(self, what: str, least_bytes: int, most: int) -> int:
        """Take a count of things that use up `least_bytes` each."""
        count = self.take(U64)
        if count > (self.size - self.at) // least_bytes:
            raise self.corrupt(f"{count} {what} do not fit in a file of {self.size} bytes")
        if count > most:
            raise self.corrupt(f"{count} {what}, at most {most} make sense")
        return count

    def name(self) -> str:
        """Take a key, or a tensor's name."""
        name = self.string()
        if name is None or len(name) > MAX_NAME_BYTES:
            raise self.corrupt(f"a name of more than {MAX_NAME_BYTES} bytes")
        return name

    def string(self) -> str | None:
        """Take a string; None if it is too long to keep."""
        n_bytes = self.take(U64)
        start = self.at
        self.skip(n_bytes)
        if n_bytes > MAX_STRING_BYTES:
            return None
        return self._view[start : self.at].decode("utf-8", "replace")

    def skip_strings(self) -> None:
        """Move over an array of strings."""
        n_strings = self.count("strings", U64.size, MAX_STRINGS)
        at, view, length_at = self.at, self._view, U64.unpack_from
        try:
            for _ in range(n_strings):
                at += U64.size + length_at(view, at)[0]
        except (struct.error, OverflowError):  # the length before led out of the file
            raise self._cut(at + U64.size) from None
        self.skip(at - self.at)

    def corrupt(self, message: str) -> BadModel:
        """Return the error for content that makes no sense."""
        return BadModel(f"{self._path}: corrupt in {self.part}: {message}")

    def _cut(self, end: int) -> BadModel:
        return BadModel(
            f"{self._path}: cut short in {self.part}: "
            f"at least {end} bytes expected, the file has {self.size}"
        )
