"""A fuzzer's input: what a peer does, act by act. Any bytes at all are a script."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

MAX_ACTS = 48  # a longer script finds nothing that a shorter one does not
MAX_DATA_BYTES = 2**16 - 1

_head = Struct(">BBH")  # kind, argument, length of the data


class Kind(IntEnum):
    """What the peer does; `arg` says how, or on which connection."""

    FRAME = 0  # sends the data, with its length before it
    RAW = 1  # sends the data as they are
    ANSWER = 2  # waits until it is answered; where it is the daemon, the client's turn
    END = 3  # sends no more
    RESET = 4  # is gone
    PAUSE = 5  # stops reading
    READ = 6  # reads on


@dataclass(frozen=True, slots=True)
class Act:
    """One act of a script."""

    kind: Kind
    arg: int = 0
    data: bytes = b""

    @property
    def sent(self) -> bytes:
        """What is put on the wire."""
        match self.kind:
            case Kind.FRAME:
                return len(self.data).to_bytes(4, "big") + self.data
            case Kind.RAW:
                return self.data
            case _:
                return b""


def parse(script: bytes) -> list[Act]:
    """Return the acts; the data of the last one may be cut short."""
    acts: list[Act] = []
    at = 0
    while at + _head.size <= len(script) and len(acts) < MAX_ACTS:
        kind, arg, n_bytes = _head.unpack_from(script, at)
        at += _head.size
        acts.append(Act(Kind(kind % len(Kind)), arg, script[at : at + n_bytes]))
        at += n_bytes
    return acts


def write(acts: Iterable[Act]) -> bytes:
    """Return acts as a script; data that are too long lose their end."""
    parts: list[bytes] = []
    for act in acts:
        data = act.data[:MAX_DATA_BYTES]
        parts += [_head.pack(act.kind, act.arg, len(data)), data]
    return b"".join(parts)
