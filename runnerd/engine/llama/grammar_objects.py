"""Objects of a JSON schema: which properties they have, and in which order these may come."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from runnerd.engine.llama.grammar_keywords import Json, Node, keywords, not_obeyed, only, shown
from runnerd.errors import BadGrammar

OBEYED = frozenset({"properties", "required", "additionalProperties"})
# What is not escaped in JSON; names that are not declared have no escapes, in which a declared one
# could hide.
PLAIN = r'"\\\x00-\x1F\x7F'

# Of names that a name must differ from: groups nest as deep as they are long.
MAX_NAME = 64
MAX_NAMES = 2000


@dataclass(frozen=True, slots=True)
class Names:
    """The properties of an object, and the schema of those that are not named (False: none)."""

    properties: dict[str, Json]
    required: frozenset[str]
    additional: Json

    @classmethod
    def of(cls, node: Node, path: str, limit: int) -> "Names":
        """Read an object's keywords.

        Raises:
            BadGrammar: they are malformed, or one of them is not obeyed.
        """
        for key in node:
            if key in NOT_OBEYED:
                raise not_obeyed(path, key)
        properties, required = node.get("properties", {}), node.get("required", [])
        if not isinstance(properties, dict):
            raise BadGrammar(f"{path}/properties: {shown(properties)} is no object")
        if len(properties) > limit:
            raise BadGrammar(f"{path}/properties: {len(properties)} entries, the limit is {limit}")
        if not isinstance(required, list):
            raise BadGrammar(f"{path}/required: {shown(required)} is no list")
        for name in required:
            if not isinstance(name, str) or name not in properties:
                raise BadGrammar(f"{path}/required: {shown(name)} is not among the properties")
        additional = node.get("additionalProperties", not properties)
        return cls(properties, frozenset(map(str, required)), additional)


NOT_OBEYED = frozenset(
    {
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
    }
)


def members(
    required: Sequence[str], optional: Sequence[str], extra: str, rule: Callable[[str], str]
) -> str:
    """Return what is between the braces.

    Args:
        required: rules of pairs of name and value that must be there.
        optional: rules of those that may; they come behind the others.
        extra: the rule of a pair that may come last, any number of times; empty: none.
        rule: adds a rule and names it.
    """
    rest = rule(f'("," space {extra})*') if extra else ""
    onward = rule(f"{extra} {rest}") if extra else ""  # what may come behind a comma
    for pair in reversed(optional):
        others = f" | {onward}" if onward else ""
        onward = rule(f"{pair} {rest}".rstrip() + others)
        rest = rule(f'("," space {onward})?')
    if required:
        return f'{""" "," space """.join(required)} {rest}'.rstrip()
    return f"({onward})?" if onward else ""


def other_names(names: Collection[str], path: str) -> str:
    """Return a rule's text for a name, in quotes, that is none of these.

    Raises:
        BadGrammar: they are too long, as the rule has a branch for each of their characters.
    """
    where = f"{path}/additionalProperties"
    longest = max(map(len, names), default=0)
    if longest > MAX_NAME:
        raise BadGrammar(f"{where}: beside a name of {longest} characters, the limit is {MAX_NAME}")
    n_characters = sum(map(len, names))
    if n_characters > MAX_NAMES:
        raise BadGrammar(
            f"{where}: beside names of {n_characters} characters in all, the limit is {MAX_NAMES}"
        )
    return rf'"\"" {_others(frozenset(names))} "\""'


def _others(ends: frozenset[str]) -> str:
    """Return what may come where a name must not go on with one of `ends`; empty: end here."""
    firsts = sorted({end[0] for end in ends if end})
    if not firsts:
        return f"[^{PLAIN}]+" if "" in ends else f"[^{PLAIN}]*"
    listed = "".join(f"\\U{ord(first):08X}" for first in firsts)
    ways = [f"[^{PLAIN}{listed}] [^{PLAIN}]*"]
    for first in firsts:
        if first in '"\\' or ord(first) < 0x20 or ord(first) == 0x7F:
            continue  # only escapes could begin so
        after = _others(frozenset(end[1:] for end in ends if end[:1] == first))
        ways.append(f'"{first}" {after}')
    return f"({' | '.join(ways)})" + ("" if "" in ends else "?")


def merged(node: Node, path: str, target: Callable[[str, str], Json]) -> tuple[Node, str]:
    """Return one schema for a node with `allOf`, and its path.

    That is its only part, where it has nothing else; or an object with the properties of all.

    Raises:
        BadGrammar: a part is no object's schema, or two have a property of the same name.
    """
    parts = node["allOf"]
    if not isinstance(parts, list) or not parts:
        raise BadGrammar(f"{path}/allOf: {shown(parts)} is no list of schemas")
    if len(node) == 1 and len(parts) == 1:
        return keywords(parts[0], f"{path}/allOf/0"), f"{path}/allOf/0"
    own: Node = {key: value for key, value in node.items() if key != "allOf"}
    properties: dict[str, Json] = {}
    required: list[Json] = []
    places = [(own, path)] + [_part(p, f"{path}/allOf/{n}", target) for n, p in enumerate(parts)]
    for part, place in places:
        only(part, {"type", "properties", "required"}, place, "allOf")
        if part.get("type", "object") != "object":
            raise not_obeyed(place, "type", "allOf")
        some = part.get("properties", {})
        if not isinstance(some, dict):
            raise BadGrammar(f"{place}/properties: {shown(some)} is no object")
        for name, schema in some.items():
            if properties.setdefault(name, schema) != schema:
                raise BadGrammar(f"{place}/properties/{name}: another part of allOf has it too")
        needed = part.get("required", [])
        if not isinstance(needed, list):
            raise BadGrammar(f"{place}/required: {shown(needed)} is no list")
        required += needed
    return {"type": "object", "properties": properties, "required": required}, path


def _part(part: Json, path: str, target: Callable[[str, str], Json]) -> tuple[Node, str]:
    node = keywords(part, path)
    reference = node.get("$ref")
    if isinstance(reference, str):
        only(node, {"$ref"}, path, "$ref")
        return keywords(target(reference, path), reference[:200]), reference[:200]
    return node, path
