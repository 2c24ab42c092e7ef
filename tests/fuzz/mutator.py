"""Changes to scripts that leave most of them meaningful.

Bytes changed at random seldom get past a length or a map's head; these know of both.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

from msgspec import DecodeError, msgpack

from tests.fuzz.payloads import NEST, anything, encode, field_value, message, structs_of
from tests.fuzz.script import MAX_ACTS, Act, Kind, parse, write

Acts = list[Act]

N_CONNECTIONS = 3


def script_mutator(union: object) -> Callable[[bytes, int, int], bytes]:
    """Return what changes a script whose frames are messages of a union.

    It takes the script, the most bytes that it may get, and a seed.
    """

    def mutate(script: bytes, max_bytes: int, seed: int) -> bytes:
        draw = Random(seed)
        acts = parse(script)
        for _ in range(draw.choice((1, 1, 2, 4, 8))):
            if not acts or draw.random() < 0.3:
                acts.insert(draw.randrange(len(acts) + 1), new_act(draw, union))
            else:
                draw.choice(CHANGES)(draw, acts, union)
        del acts[MAX_ACTS:]
        return write(acts)[:max_bytes]

    return mutate


def cross(script: bytes, other: bytes, max_bytes: int, seed: int) -> bytes:
    """Return a script that begins as one and goes on, or is interleaved, with another."""
    draw = Random(seed)
    acts, others = parse(script), parse(other)
    if draw.random() < 0.5:
        acts = acts[: draw.randrange(len(acts) + 1)] + others[draw.randrange(len(others) + 1) :]
    else:
        places = sorted(draw.choices(range(len(acts) + 1), k=len(others)), reverse=True)
        for at, act in zip(places, reversed(others), strict=True):
            acts.insert(at, act)
    return write(acts[:MAX_ACTS])[:max_bytes]


def new_act(draw: Random, union: object) -> Act:
    """Return an act at random; most of them send a message."""
    arg = draw.randrange(N_CONNECTIONS) if draw.random() < 0.7 else draw.randrange(256)
    kinds = (Kind.FRAME,) * 12 + (Kind.ANSWER,) * 4 + tuple(Kind)
    kind = draw.choice(kinds)
    match kind:
        case Kind.FRAME:
            return Act(kind, arg, message(draw, union))
        case Kind.RAW:
            return Act(kind, arg, _raw(draw, union))
        case _:
            return Act(kind, arg)


def _raw(draw: Random, union: object) -> bytes:
    """Return bytes that are no whole frame, or more than one."""
    frame = Act(Kind.FRAME, 0, message(draw, union)).sent
    match draw.randrange(5):
        case 0:
            return frame[: draw.randrange(len(frame))]
        case 1:
            return draw.choice((2**32 - 1, 2**24, 2**16, 9000, 0)).to_bytes(4, "big")
        case 2:
            return draw.randbytes(draw.randrange(12))
        case 3:
            return b"GET / HTTP/1.1\r\n\r\n"
        case _:
            return frame * draw.randrange(1, 5)


def _remove(draw: Random, acts: Acts, union: object) -> None:
    del acts[draw.randrange(len(acts))]


def _repeat(draw: Random, acts: Acts, union: object) -> None:
    acts.insert(draw.randrange(len(acts) + 1), draw.choice(acts))


def _move(draw: Random, acts: Acts, union: object) -> None:
    act = acts.pop(draw.randrange(len(acts)))
    acts.insert(draw.randrange(len(acts) + 1), act)


def _change_arg(draw: Random, acts: Acts, union: object) -> None:
    at = draw.randrange(len(acts))
    acts[at] = replace(acts[at], arg=draw.choice((0, 1, 2, draw.randrange(256))))


def _change_bytes(draw: Random, acts: Acts, union: object) -> None:
    """Put bytes in place of others; the frame's length stays right."""
    at = draw.randrange(len(acts))
    data = bytearray(acts[at].data)
    start = draw.randrange(len(data) + 1)
    new = draw.choice((draw.randbytes(draw.randrange(3)), b"\xdd\xff\xff\xff\xff", NEST))
    data[start : start + draw.randrange(4)] = new if draw.random() < 0.1 else new[:2]
    acts[at] = replace(acts[at], data=bytes(data))


def _cut(draw: Random, acts: Acts, union: object) -> None:
    at = draw.randrange(len(acts))
    acts[at] = replace(acts[at], data=acts[at].data[: draw.randrange(len(acts[at].data) + 1)])


def _change_field(draw: Random, acts: Acts, union: object) -> None:
    """Give a message's field another value, of its type or of any."""
    at = draw.randrange(len(acts))
    with suppress(DecodeError, RecursionError, ValueError, TypeError):  # it is no message
        fields = msgpack.decode(acts[at].data, type=dict)
        of_tag = {kind.tag: kind.fields for kind in structs_of(union)}
        known = of_tag.get(fields.get("type"), ())
        if known and draw.random() < 0.8:
            field = draw.choice(known)
            fields[field.encode_name] = field_value(draw, field)
        else:
            fields[draw.choice(list(fields) or ["type"])] = anything(draw)
        acts[at] = replace(acts[at], data=encode(fields))


CHANGES = (_remove, _repeat, _move, _change_arg, _change_bytes, _cut) + (_change_field,) * 4
