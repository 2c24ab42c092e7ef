"""GGUF files made by hand, every field of which a test can get wrong."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 4, 5, 6, 7, 8, 9, 10, 12  # value types
Q4_0 = 2  # a tensor type: blocks of 32 values in 18 bytes


def string(text: str) -> bytes:
    """Return a string as GGUF writes it."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


def entry(key: str, kind: int, payload: bytes) -> bytes:
    """Return a metadata entry."""
    return string(key) + struct.pack("<I", kind) + payload


def number(key: str, value: int) -> bytes:
    """Return an entry with a uint32."""
    return entry(key, U32, struct.pack("<I", value))


def text(key: str, value: str) -> bytes:
    """Return an entry with a string."""
    return entry(key, STRING, string(value))


def array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    """Return an entry with an array."""
    return entry(key, ARRAY, struct.pack("<IQ", kind, count) + payload)


def tensor(name: str, extents: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """Return a tensor's entry; type 0 is float32."""
    n_dims = len(extents)
    return string(name) + struct.pack(f"<I{n_dims}QIQ", n_dims, *extents, kind, offset)


ARCHITECTURE = text("general.architecture", "toy")


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The parts of a file. Counts and padding are what they should be, unless given."""

    entries: tuple[bytes, ...] = (ARCHITECTURE,)
    tensors: tuple[bytes, ...] = ()
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_entries: int | None = None

    def to_bytes(self) -> bytes:
        """Return the whole file."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_entries = len(self.entries) if self.n_entries is None else self.n_entries
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_entries)
        head += b"".join(self.entries) + b"".join(self.tensors)
        padding = b"\0" * (-len(head) % 32) if self.data else b""
        return head + padding + self.data
