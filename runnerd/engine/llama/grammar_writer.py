"""Writes the rules of a grammar for a JSON schema: every keyword is obeyed, or refused.

What is written is often stricter than the schema asks: properties come in the schema's order,
those that are required first; none is added that is not named, without `additionalProperties`.
A text that follows the grammar is always valid, but for `oneOf`, which is taken as `anyOf`.
"""

import json
from collections.abc import Callable

from runnerd.engine.llama.grammar_keywords import (
    MOST_SHOWN,
    Json,
    Node,
    count,
    has_type,
    keywords,
    kind_of,
    not_obeyed,
    number,
    only,
    shown,
)
from runnerd.engine.llama.grammar_numbers import integer_bounds, integers, reals
from runnerd.engine.llama.grammar_objects import Names, members, merged, other_names
from runnerd.engine.llama.grammar_pattern import gbnf_pattern
from runnerd.engine.llama.grammar_primitives import FORMATS, PRIMITIVES
from runnerd.engine.llama.grammar_text import MAX_BYTES, MAX_REPETITIONS
from runnerd.errors import BadGrammar

MAX_ENUM = 1000
MAX_PROPERTIES = 200  # of an object


class SchemaWriter:
    """The rules for one schema."""

    def __init__(self, target: Callable[[str, str], Json]) -> None:
        """Write with what finds the schema of a reference, that is at a path."""
        self._target = target
        self._rules = dict(PRIMITIVES)
        self._names: dict[str, str] = {}  # of a rule, by its text
        self._references: dict[str, str] = {}
        self._n_bytes = 0

    def text(self) -> str:
        """Return the grammar."""
        return "\n".join(f"{name} ::= {body}" for name, body in self._rules.items())

    def visit(self, schema: Json, path: str, leading: tuple[str, ...] = ()) -> str:
        """Write a schema's rules, and name the first.

        `leading` are the references on the way here since a character was written.

        Raises:
            BadGrammar: the path, and what is wrong there.
        """
        path = path[:MOST_SHOWN]
        node = keywords(schema, path)
        if "$ref" in node:
            only(node, {"$ref"}, path, "$ref")
            return self._reference(node["$ref"], path, leading)
        if "allOf" in node:
            node, path = merged(node, path, self._target)
            if "allOf" in node or "$ref" in node:
                return self.visit(node, path, leading)
        for key in ("anyOf", "oneOf"):
            if key in node:
                only(node, {key, "type"}, path, key)
                return self._any(node, key, path, leading)
        if "const" in node or "enum" in node:
            return self._values(node, path)
        kind = node.get("type")
        if isinstance(kind, list):
            kinds = [self._typed(node, one, path) for one in kind]
            if not kinds:
                raise BadGrammar(f"{path}/type: none")
            return self._rule(" | ".join(kinds))
        return self._typed(node, kind, path)

    def _rule(self, body: str) -> str:
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = f"r{len(self._names)}"
            self._define(name, body)
        return name

    def _define(self, name: str, body: str) -> None:
        self._rules[name] = body
        self._n_bytes += len(body)
        if self._n_bytes > MAX_BYTES:
            raise BadGrammar(f"the schema's grammar has more than {MAX_BYTES} bytes")

    def _reference(self, reference: Json, path: str, leading: tuple[str, ...]) -> str:
        if not isinstance(reference, str):
            raise BadGrammar(f"{path}/$ref: {shown(reference)} is no reference")
        if reference in leading:
            raise BadGrammar(f"{path}/$ref: {reference[:100]} leads back to itself")
        name = self._references.get(reference)
        if name is None:
            name = self._references[reference] = f"ref{len(self._references)}"
            target = self._target(reference, path)
            self._define(name, self.visit(target, reference, (*leading, reference)))
        return name

    def _any(self, node: Node, key: str, path: str, leading: tuple[str, ...]) -> str:
        schemas = node[key]
        if not isinstance(schemas, list) or not schemas:
            raise BadGrammar(f"{path}/{key}: {shown(schemas)} is no list of schemas")
        for schema in schemas if "type" in node else ():
            if not isinstance(schema, dict) or schema.get("type") != node["type"]:
                raise not_obeyed(path, "type", f"{key}, of which not all have it")
        visited = [self.visit(s, f"{path}/{key}/{n}", leading) for n, s in enumerate(schemas)]
        return self._rule(" | ".join(visited))

    def _values(self, node: Node, path: str) -> str:
        key = "const" if "const" in node else "enum"
        only(node, {key, "type"}, path, key)
        values = [node[key]] if key == "const" else node[key]
        if not isinstance(values, list) or not values:
            raise BadGrammar(f"{path}/{key}: {shown(values)} is no list of values")
        if len(values) > MAX_ENUM:
            raise BadGrammar(f"{path}/{key}: {len(values)} entries, the limit is {MAX_ENUM}")
        for value in values:
            if "type" in node and not has_type(value, node["type"]):
                raise BadGrammar(f"{path}/{key}: {shown(value)} is not of the type")
        return self._rule(f"({' | '.join(dict.fromkeys(map(literal, values)))}) space")

    def _typed(self, node: Node, kind: Json, path: str) -> str:
        kind = kind_of(node) if kind is None else kind
        match kind:
            case "":
                return "object" if path == "#" else "value"
            case "null" | "boolean":
                return kind
            case "object":
                return self._object(node, path)
            case "array":
                return self._array(node, path)
            case "string":
                return self._string(node, path)
            case "number" | "integer":
                return self._number(node, kind, path)
        raise BadGrammar(f"{path}/type: {shown(kind)} is no type")

    def _object(self, node: Node, path: str) -> str:
        names = Names.of(node, path, MAX_PROPERTIES)
        more = names.additional
        if not names.properties and more is True:
            return "object"
        pairs = {
            name: self._rule(
                f'{literal(name)} space ":" space {self.visit(schema, f"{path}/properties/{name}")}'
            )
            for name, schema in names.properties.items()
        }
        extra = ""
        if more is not False:
            value = self.visit(more, f"{path}/additionalProperties")
            key = self._rule(other_names(names.properties, path))
            extra = self._rule(f'{key} space ":" space {value}')
        required = [pair for name, pair in pairs.items() if name in names.required]
        optional = [pair for name, pair in pairs.items() if name not in names.required]
        return self._rule(f'"{{" space {members(required, optional, extra, self._rule)} "}}" space')

    def _array(self, node: Node, path: str) -> str:
        for key in ("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"):
            if node.get(key, False) is not False:
                raise not_obeyed(path, key)
        least = count(node, "minItems", MAX_REPETITIONS, path) or 0
        most = count(node, "maxItems", MAX_REPETITIONS, path)
        if most is not None and most < least:
            raise BadGrammar(f"{path}: maxItems is {most}, minItems is {least}")
        key = "prefixItems" if "prefixItems" in node else "items"
        items = node.get(key, True)
        if isinstance(items, list):
            if not least <= len(items) <= (len(items) if most is None else most):
                raise BadGrammar(f"{path}/{key}: {len(items)} items, not so many as others ask for")
            visited = [self.visit(item, f"{path}/{key}/{n}") for n, item in enumerate(items)]
            return self._rule(f'"[" space {""" "," space """.join(visited)} "]" space')
        if most == 0 or (items is False and least == 0):
            return self._rule('"[" space "]" space')
        item = self.visit(items, f"{path}/{key}")
        fewer = "" if most is None else most - 1
        some = f'{item} ("," space {item}){{{max(least - 1, 0)},{fewer}}}'
        return self._rule(f'"[" space {some if least else f"({some})?"} "]" space')

    def _string(self, node: Node, path: str) -> str:
        if "pattern" in node:
            for key in ("minLength", "maxLength"):
                if key in node:
                    raise not_obeyed(path, key, "pattern")
            try:
                inner = gbnf_pattern(node["pattern"])
            except BadGrammar as err:
                raise BadGrammar(f"{path}/pattern: {err}") from err
            return self._rule(rf'"\"" {inner} "\"" space')
        least = count(node, "minLength", MAX_REPETITIONS, path) or 0
        most = count(node, "maxLength", MAX_REPETITIONS, path)
        if most is not None and most < least:
            raise BadGrammar(f"{path}: maxLength is {most}, minLength is {least}")
        if least or most is not None:
            to = "" if most is None else most
            return self._rule(rf'"\"" char{{{least},{to}}} "\"" space')
        form = node.get("format")
        if isinstance(form, str) and form in FORMATS:
            return self._rule(rf'"\"" {FORMATS[form]} "\"" space')
        return "string"

    def _number(self, node: Node, kind: str, path: str) -> str:
        if "multipleOf" in node:
            raise not_obeyed(path, "multipleOf")
        minimum, maximum = number(node, "minimum", path), number(node, "maximum", path)
        above = number(node, "exclusiveMinimum", path)
        below = number(node, "exclusiveMaximum", path)
        least, most = integer_bounds(minimum, above, maximum, below)
        if least is None and most is None:
            return kind
        if kind == "number":
            for key, bound in (("exclusiveMinimum", above), ("exclusiveMaximum", below)):
                if bound is not None and bound is not False:
                    raise not_obeyed(path, key, "the type number")
            for key, limit in (("minimum", minimum), ("maximum", maximum)):
                if limit is not None and limit != int(limit):
                    raise BadGrammar(f"{path}/{key}: {limit} is no integer, which is not supported")
        written = integers if kind == "integer" else reals
        try:
            return self._rule(f"({written(least, most)}) space")
        except BadGrammar as err:
            raise BadGrammar(f"{path}: {err}") from err


def literal(value: Json) -> str:
    """Return the grammar's literal for a value's JSON."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character can only be written as an escape
        text = json.dumps(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
