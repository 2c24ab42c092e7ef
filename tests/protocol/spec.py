"""Reads the specification: its tables, its bytes, its code; and words a struct the same way."""

import re
from pathlib import Path

from msgspec import NODEFAULT, inspect, json

from runnerd_protocol.messages import Message

README = Path(__file__).parents[2] / "protocol" / "README.md"


def section(title: str) -> str:
    """Return the text under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", README.read_text(), re.M | re.S)
    assert found is not None, f"the specification has no section {title!r}"
    return found[1]


def table(title: str) -> list[list[str]]:
    """Return the rows of the first table under a heading, without backticks."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]
    return cells[2:]


def code_block(title: str) -> str:
    """Return the first fenced block under a heading."""
    text = README.read_text().split(f"# {title}\n", 1)[1]
    found = re.search(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    assert found is not None, f"the section {title!r} has no block"
    return found[1]


def rows_of(kind: type) -> list[list[str]]:
    """Return field, type, default and bounds of a struct, as the specification words them."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [
        [
            field.name,
            type_in_words(field.type),
            default_in_words(field),
            bounds_in_words(field.type),
        ]
        for field in info.fields
    ]


def type_in_words(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(type_in_words(each) for each in types)
        case inspect.ListType(item_type=inspect.UnionType(types=[inspect.StrType(), _])):
            return "array of prompts"
        case inspect.ListType(item_type=inspect.UnionType()):
            return "array of parts"
        case inspect.ListType(item_type=inspect.StructType(cls=cls, array_like=True)):
            return f"array of {name_in_words(cls)}"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"array of {type_in_words(item)}"
        case inspect.StructType() | inspect.DictType():
            return "map"
        case inspect.LiteralType():
            return "str"
        case inspect.NoneType():
            return "null"
    return type(kind).__name__.removesuffix("Type").lower()


def name_in_words(kind: type) -> str:
    """Return the name of a struct without a tag, as the specification writes it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def default_in_words(field: inspect.Field) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    words = {None: "null", True: "true", False: "false", "": '""'}
    if isinstance(value, str | bool | None):
        return words.get(value, f'"{value}"')
    if isinstance(value, int | float):
        return repr(value)
    return json.encode(value).decode().replace(",", ", ")


def bounds_in_words(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            return "; ".join(filter(None, map(bounds_in_words, types)))
        case inspect.DictType(key_type=key, value_type=value, max_length=max_length):
            outer = f"at most {max_length} items" if max_length else ""
            bounds = (("keys", bounds_in_words(key)), ("values", bounds_in_words(value)))
            return "; ".join(filter(None, [outer, *(f"{n} {b}" for n, b in bounds if b)]))
        case (
            inspect.ListType(item_type=item, max_length=max_length)
            | inspect.VarTupleType(item_type=item, max_length=max_length)
        ):
            outer = f"at most {max_length} items" if max_length else ""
            inner = bounds_in_words(item)
            return "; ".join(filter(None, [outer, f"each {inner}" if inner else ""]))
        case inspect.IntType(ge=low, le=high) if low is not None and high is not None:
            return f"{_number(low)} to {_number(high)}"
        case inspect.FloatType(gt=low, le=high) if low is not None and high is not None:
            return f"above {_number(low)}, at most {_number(high)}"
        case inspect.FloatType(ge=low, le=high) if low is not None and high is not None:
            return f"{_number(low)} to {_number(high)}"
        case inspect.StrType(min_length=low, max_length=high) if high is not None:
            return f"{low} to {high} characters" if low else f"at most {_number(high)} characters"
        case inspect.BytesType(min_length=length, max_length=high) if length and length == high:
            return f"{length} bytes"
        case inspect.LiteralType(values=values):
            return ", ".join(map(str, values))
    return ""


def _number(value: float) -> str:
    for power in (20, 31, 32, 63):
        for sign in (1, -1):
            rest = value - sign * 2**power if isinstance(value, int) else 9
            if -2 <= rest <= 0:
                return f"{'-' * (sign < 0)}2^{power}" + (f" - {-rest}" if rest else "")
    return f"{value:g}"


def tag_of(kind: type[Message]) -> str:
    return str(kind.__struct_config__.tag)
