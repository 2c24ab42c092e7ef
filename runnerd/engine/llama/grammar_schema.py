"""JSON schema to GBNF: the bindings' converter, kept within bounds and away from its mistakes.

What the converter does is decided by a schema, which anybody may have written; so a schema is
looked through first, and what the converter cannot do is refused with the path in the schema.
"""

import json
from math import isfinite

from llama_cpp.llama_grammar import PRIMITIVE_RULES, SchemaConverter

from runnerd.engine.llama.grammar_pattern import gbnf_pattern
from runnerd.engine.llama.grammar_text import MAX_BYTES, MAX_REPETITIONS
from runnerd.errors import BadGrammar

MAX_SCHEMA_BYTES = 2**16
MAX_DEPTH = 64  # of the schema; the converter calls itself for each level
MAX_NODES = 10_000
MAX_PROPERTIES = 200  # of an object: the converter takes time by their square
MAX_ENUM = 1000
COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
# What code that takes a schema for well-formed comes to raise.
CONVERTER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

# A newline with an indentation at most, so a model cannot go on with blanks for ever.
SPACE = r'| " " | "\n" [ \t]{0,20}'

# JSON has no control characters in strings; the converter lets them through.
CHARACTER = r"""[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})"""
DECIDE_BEFORE_LENGTHS = {"$ref", "oneOf", "anyOf", "const", "enum", "pattern", "format"}

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


def schema_grammar(text: str) -> tuple[str, str]:
    """Turn a JSON schema into a grammar, and name its first rule.

    Raises:
        BadGrammar: it is no schema, too large, or asks for what cannot be done; and where.
    """
    schema = _parsed(text)
    converter = _Converter(_look_through(schema))
    try:
        start = converter.visit(schema, "")
    except CONVERTER_ERRORS as err:
        raise BadGrammar(f"the schema cannot be converted: {err!r:.200}") from err
    return converter.format_grammar(), start


class _Converter(SchemaConverter):  # type: ignore[misc]
    """The bindings' converter with names, literals and repetitions of our own."""

    def __init__(self, refs: dict[str, Json]) -> None:
        super().__init__(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._refs = refs  # instead of its own `resolve_refs`, which does not find all
        self._rules["space"] = SPACE
        self._n_bytes = 0
        self._names: dict[str, str] = {}

    def visit(self, schema: Json, name: str) -> str:
        """Add the rules for a schema; return the name of the first."""
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise BadGrammar(f"the schema of {name or 'the root'} is {json.dumps(schema)[:50]}")
        added: str
        body = self._repetition(schema, name)
        if body is not None:
            added = self._add_rule(name or "root", body)
        else:
            added = super().visit(schema, name)
        return added

    def _add_rule(self, name: str, rule: str) -> str:
        if rule == PRIMITIVE_RULES["char"].content:
            rule = CHARACTER
        n_rules = len(self._rules)
        added: str = super()._add_rule(name, rule)
        if len(self._rules) > n_rules:
            self._n_bytes += len(rule)
        if self._n_bytes > MAX_BYTES:
            raise BadGrammar(f"the schema's grammar has more than {MAX_BYTES} bytes")
        return added

    def _format_literal(self, literal: str) -> str:
        # The converter gives JSON with escapes, and does not escape their backslashes.
        text = json.dumps(json.loads(literal), ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # half a character can only be written as an escape
            text = literal
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def _visit_pattern(self, pattern: str, name: str) -> str:
        added: str = super()._visit_pattern(gbnf_pattern(pattern), name)
        return added

    def _resolve_ref(self, ref: str) -> str:
        # The converter takes the last part of a path for a name, and so one schema for another.
        name = self._names.get(ref)
        if name is None:
            name = self._names[ref] = f"ref-{len(self._names)}-"
            self._rules[name] = self.visit(self._refs[ref], f"{name}to")
        return name

    def _repetition(self, schema: dict[str, Json], name: str) -> str | None:
        """Write a length as GBNF does; the converter would nest a group for each."""
        kind, items = schema.get("type"), schema.get("items")
        if schema.keys() & DECIDE_BEFORE_LENGTHS:
            return None
        if kind == "string" and schema.keys() & {"minLength", "maxLength"}:
            least, most = _bounds(schema, "minLength", "maxLength", name)
            character = self._add_primitive("char", PRIMITIVE_RULES["char"])
            return rf'"\"" {character}{{{least},{most}}} "\"" space'
        if kind == "array" and isinstance(items, dict) and schema.keys() & {"minItems", "maxItems"}:
            least, most = _bounds(schema, "minItems", "maxItems", name)
            if most == "0":
                return '"[" space "]" space'
            item = self.visit(items, f"{name}-item" if name else "item")
            fewer = int(most) - 1 if most else ""
            some = f'{item} ("," space {item}){{{max(least - 1, 0)},{fewer}}}'
            return f'"[" space {some if least else f"({some})?"} "]" space'
        return None


def _bounds(schema: dict[str, Json], lower: str, upper: str, name: str) -> tuple[int, str]:
    least, most = schema.get(lower, 0), schema.get(upper)
    assert isinstance(least, int), "looked through"
    if most is None:
        return least, ""
    assert isinstance(most, int), "looked through"
    if most < least:
        raise BadGrammar(f"{name or 'the root'}: {upper} is {most}, {lower} is {least}")
    return least, str(most)


def _parsed(text: str) -> Json:
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError as err:
        raise BadGrammar(f"the schema has half a character at {err.start}") from err
    if n_bytes > MAX_SCHEMA_BYTES:
        raise BadGrammar(f"a schema of {n_bytes} bytes, the limit is {MAX_SCHEMA_BYTES}")
    try:
        parsed: Json = json.loads(text)
    except RecursionError as err:
        raise BadGrammar(f"the schema is nested more than {MAX_DEPTH} deep") from err
    except ValueError as err:  # says line and column
        raise BadGrammar(f"the schema is not JSON: {err}") from err
    if not isinstance(parsed, dict):
        raise BadGrammar("the schema is not a JSON object")
    return parsed


def _look_through(schema: Json) -> dict[str, Json]:
    """Refuse what would take the converter long, or make it do something else.

    Returns:
        What each reference refers to.
    """
    waiting: list[tuple[Json, str, int]] = [(schema, "#", 0)]
    references: dict[str, str] = {}  # and where it is
    n_nodes = 0
    while waiting:
        node, path, depth = waiting.pop()
        n_nodes += 1
        if n_nodes > MAX_NODES:
            raise BadGrammar(f"the schema has more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise BadGrammar(f"{path[:200]}: nested more than {MAX_DEPTH} deep")
        if isinstance(node, dict):
            _check_object(node, path[:200])
            reference = node.get("$ref")
            if isinstance(reference, str):
                references.setdefault(reference, path[:200])
            waiting.extend((node[key], f"{path}/{key}", depth + 1) for key in node)
        elif isinstance(node, list):
            waiting.extend((item, f"{path}/{n}", depth + 1) for n, item in enumerate(node))
        elif isinstance(node, float) and not isfinite(node):
            raise BadGrammar(f"{path[:200]}: JSON has no such number")
    return {reference: _target(schema, reference, path) for reference, path in references.items()}


def _target(schema: Json, reference: str, path: str) -> Json:
    target = schema
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key[:6]) < len(target):
            target = target[int(key[:6])]
        else:
            raise BadGrammar(f"{path}/$ref: {reference[:100]} is not there")
    return target


def _check_object(node: dict[str, Json], path: str) -> None:
    reference = node.get("$ref", "#")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        shown = json.dumps(reference)[:100]
        raise BadGrammar(f"{path}/$ref: {shown} is not in this schema, and nothing is fetched")
    for key in COUNTS:
        count = node.get(key)
        if count is None or isinstance(count, dict | list):  # a property can have this name
            continue
        if type(count) is not int or not 0 <= count <= MAX_REPETITIONS:
            shown = json.dumps(count)[:50]
            raise BadGrammar(f"{path}/{key}: {shown}, the limit is {MAX_REPETITIONS}")
    for key, limit in (("enum", MAX_ENUM), ("properties", MAX_PROPERTIES)):
        values = node.get(key)
        if isinstance(values, dict | list) and len(values) > limit:
            raise BadGrammar(f"{path}/{key}: {len(values)} entries, the limit is {limit}")
