"""Payloads by reflection over the wire's types: a new message is covered by itself.

Most are nearly right: only those get past the decoder, to where the daemon acts on them.
"""

from collections.abc import Sequence
from functools import cache
from random import Random

from msgspec import inspect, msgpack

WIRE_INT = (-(2**63), 2**64 - 1)  # what MessagePack holds
EDGES = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1)
NUMBERS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    "a",
    "\0",
    "\n",
    "é€😀",
    "\u202e",
    "hello there",
    "$.x`[...]",
    'root ::= "a"*',
    '{"type": "object"}',
    "x" * 300,
)
N_IDS = 6  # few, so that they meet
STRANGE = 0.02  # of the values: of another type, or out of bounds
MAX_ITEMS = 70  # one more than most lists may have; a script holds few that are as long
NEST = b"\x91" * 1200  # deeper than any decoder goes


def message(draw: Random, union: object, tag: str | None = None) -> bytes:
    """Return a payload that is like one of the messages of a union."""
    kinds = structs_of(union)
    kind = draw.choice([each for each in kinds if tag in (None, each.tag)] or kinds)
    pairs = [
        (field.encode_name, field_value(draw, field))
        for field in kind.fields
        if draw.random() < (0.98 if field.required else 0.15)
    ]
    pairs.insert(0, (kind.tag_field or "type", kind.tag))
    if draw.random() < STRANGE:
        pairs.append(draw.choice([*pairs, ("later", anything(draw))]))
    if draw.random() < STRANGE:
        draw.shuffle(pairs)
    return b"".join([_map_head(len(pairs)), *(encode(part) for pair in pairs for part in pair)])


@cache
def structs_of(union: object) -> list[inspect.StructType]:
    """Return what a union of messages is made of."""
    kind = inspect.type_info(union)
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return [each for each in kinds if isinstance(each, inspect.StructType)]


def field_value(draw: Random, field: inspect.Field) -> object:
    """Return a value for a field of a message."""
    if field.name == "request_id" and draw.random() > STRANGE:
        return draw.randrange(N_IDS)
    return value(draw, field.type)


def value(draw: Random, kind: inspect.Type) -> object:
    """Return a value of a type, at its bounds as often as within; now and then not of it."""
    if draw.random() < STRANGE:
        return anything(draw)
    match kind:
        case inspect.UnionType(types=types):
            return value(draw, draw.choice(types))
        case inspect.BoolType():
            return draw.random() < 0.5
        case inspect.IntType():
            return _whole_number(draw, kind)
        case inspect.FloatType():
            return _number(draw, kind)
        case inspect.StrType():
            text = draw.choice(TEXTS)
            return text[: kind.max_length] if draw.random() > STRANGE else text * 20
        case inspect.BytesType():
            n_bytes = _length(draw, kind.min_length, kind.max_length)
            return draw.choice((bytes(n_bytes), draw.randbytes(n_bytes)))
        case inspect.LiteralType(values=values):
            return draw.choice(values)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            n_items = _length(draw, kind.min_length, kind.max_length)
            return [value(draw, item) for _ in range(n_items)]
        case inspect.DictType():
            n_items = _length(draw, kind.min_length, kind.max_length)
            return {_key(draw, kind.key_type): value(draw, kind.value_type) for _ in range(n_items)}
        case inspect.StructType():
            return _struct(draw, kind)
        case inspect.NoneType():
            return None
        case _:
            return anything(draw)


def anything(draw: Random, depth: int = 0) -> object:
    """Return any value that MessagePack can hold."""
    match draw.randrange(8 if depth < 3 else 6):
        case 0:
            return draw.choice(EDGES)
        case 1:
            return draw.choice(NUMBERS)
        case 2:
            return draw.choice(TEXTS)
        case 3:
            return draw.randbytes(draw.randrange(40))
        case 4:
            return draw.choice((None, True, False))
        case 5:
            return msgpack.Ext(draw.randrange(-128, 128), draw.randbytes(draw.choice((0, 4, 12))))
        case 6:
            return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]
        case _:
            return {draw.choice(TEXTS): anything(draw, depth + 1) for _ in range(draw.randrange(3))}


def encode(what: object) -> bytes:
    """Return a value on the wire."""
    return msgpack.encode(what)


def _map_head(n_pairs: int) -> bytes:
    return bytes([0x80 + n_pairs]) if n_pairs < 16 else b"\xde" + n_pairs.to_bytes(2, "big")


def _struct(draw: Random, kind: inspect.StructType) -> object:
    if kind.array_like:
        return [value(draw, field.type) for field in kind.fields]
    fields = {
        field.encode_name: field_value(draw, field)
        for field in kind.fields
        if draw.random() < (0.98 if field.required else 0.3)
    }
    return {kind.tag_field: kind.tag, **fields} if kind.tag_field else fields


def _key(draw: Random, kind: inspect.Type) -> object:
    key = value(draw, kind)
    return key if isinstance(key, int | str | bytes) else str(key)


def _whole_number(draw: Random, kind: inspect.IntType) -> int:
    low, high = (int(kind.ge or 0), int(kind.le if kind.le is not None else 2**31))
    near = draw.choice((low, high, low + draw.randrange(8), draw.randrange(low, high + 1)))
    strange = draw.choice((low - 1, high + 1, *EDGES))
    number = near if draw.random() > STRANGE else strange
    return max(WIRE_INT[0], min(WIRE_INT[1], number))


def _number(draw: Random, kind: inspect.FloatType) -> float:
    low, high = kind.ge if kind.ge is not None else kind.gt, kind.le
    if draw.random() < STRANGE or low is None or high is None:
        return draw.choice(NUMBERS)
    return draw.choice((float(low), float(high), draw.uniform(low, high)))


def _length(draw: Random, low: int | None, high: int | None) -> int:
    n_least, n_most = low or 0, MAX_ITEMS if high is None else high
    lengths: Sequence[int] = (n_least, n_least + draw.randrange(4), n_least + 1)
    length = draw.choice(lengths) if draw.random() > STRANGE else n_most + draw.randrange(-1, 2)
    return max(0, min(length, MAX_ITEMS))
