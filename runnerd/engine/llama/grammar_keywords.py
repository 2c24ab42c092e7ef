"""The keywords of JSON Schema that decide whether a value is valid, and which of them are obeyed.

What is not among them (title, default, `$id`, an unknown word) says nothing about validity.
"""

import json
from collections.abc import Set

from runnerd.engine.llama.grammar_numbers import Number
from runnerd.errors import BadGrammar

MOST_SHOWN = 200  # characters of a path: each level makes its own, of what may be 64 KiB

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
Node = dict[str, Json]

# By the kind of value that they say something about, in the order in which a schema without a
# type is taken for one.
OF_KIND: dict[str, Set[str]] = {
    "object": {
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
    },
    "array": {
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
    },
    "string": {"pattern", "minLength", "maxLength", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
OF_ANY = frozenset({"type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"})
NEVER_OBEYED = ("not", "if", "then", "else", "$dynamicRef", "$recursiveRef")
KEYWORDS = OF_ANY.union(NEVER_OBEYED, *OF_KIND.values())


def keywords(schema: Json, path: str) -> Node:
    """Return what decides about validity.

    Raises:
        BadGrammar: it is no schema, or has a keyword that is never obeyed.
    """
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise BadGrammar(f"{path}: {shown(schema)} is no schema that a value fits")
    for key in NEVER_OBEYED:
        if key in schema:
            raise not_obeyed(path, key)
    return {key: value for key, value in schema.items() if key in KEYWORDS}


def only(node: Node, obeyed: Set[str], path: str, beside: str = "") -> None:
    """Refuse every keyword that is not obeyed here; `format` is one that need not be."""
    for key in node:
        if key not in obeyed and key != "format":
            raise not_obeyed(path, key, beside)


def kind_of(node: Node) -> str:
    """Return the kind of value that a schema without a type is taken to be about."""
    return next((kind for kind, words in OF_KIND.items() if node.keys() & words), "")


def not_obeyed(path: str, key: str, beside: str = "") -> BadGrammar:
    """Make the error for a keyword that would be ignored."""
    return BadGrammar(f"{path}/{key}: not supported" + (f" beside {beside}" if beside else ""))


def has_type(value: Json, kind: Json) -> bool:
    """Whether a value is of a type, or of one of several."""
    match kind:
        case list():
            return any(has_type(value, one) for one in kind)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "number":
            return type(value) in (int, float)
        case "integer":
            return type(value) is int or (isinstance(value, float) and value.is_integer())
    return False


def count(node: Node, key: str, limit: int, path: str) -> int | None:
    """Return a length or number of items.

    Raises:
        BadGrammar: it is none, or above the limit.
    """
    value = node.get(key)
    if value is not None and (type(value) is not int or not 0 <= value <= limit):
        raise BadGrammar(f"{path}/{key}: {shown(value)}, the limit is {limit}")
    return value if isinstance(value, int) else None


def number(node: Node, key: str, path: str) -> Number | None:
    """Return a bound; a boolean, which older drafts have, is one for the exclusive ones only."""
    value = node.get(key)
    is_exclusive = key.startswith("exclusive")
    if value is None or (isinstance(value, bool) and is_exclusive):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadGrammar(f"{path}/{key}: {shown(value)} is no number")
    return value


def shown(value: Json) -> str:
    """Write a value for an error's message."""
    return json.dumps(value)[:50]
