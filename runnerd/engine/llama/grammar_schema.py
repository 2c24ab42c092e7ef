"""JSON schema to GBNF: within bounds, and every keyword obeyed or refused.

What is written is decided by a schema, which anybody may have written; so a schema is looked
through first, and what cannot be done is refused with the path in the schema.
"""

import json
from math import isfinite

from runnerd.engine.llama.grammar_keywords import MOST_SHOWN, Json, shown
from runnerd.engine.llama.grammar_writer import SchemaWriter
from runnerd.errors import BadGrammar

MAX_SCHEMA_BYTES = 2**16
MAX_DEPTH = 64  # of the schema; the writer calls itself for each level
MAX_NODES = 10_000


def schema_grammar(text: str) -> tuple[str, str]:
    """Turn a JSON schema into a grammar, and name its first rule.

    Raises:
        BadGrammar: it is no schema, too large, or asks for what cannot be done; and where.
    """
    schema = _parsed(text)
    _look_through(schema)
    writer = SchemaWriter(lambda reference, path: _target(schema, reference, path))
    try:
        start = writer.visit(schema, "#")
    except RecursionError as err:
        raise BadGrammar("#: a reference leads to another, and so on, too many times") from err
    return writer.text(), start


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


def _look_through(schema: Json) -> None:
    """Refuse what would take the writer long."""
    waiting: list[tuple[Json, str, int]] = [(schema, "#", 0)]
    n_nodes = 0
    while waiting:
        node, path, depth = waiting.pop()
        n_nodes += 1
        if n_nodes > MAX_NODES:
            raise BadGrammar(f"the schema has more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise BadGrammar(f"{path}: nested more than {MAX_DEPTH} deep")
        if isinstance(node, dict):
            waiting.extend(
                (node[key], f"{path}/{key[:MOST_SHOWN]}"[:MOST_SHOWN], depth + 1) for key in node
            )
        elif isinstance(node, list):
            waiting.extend(
                (item, f"{path}/{n}"[:MOST_SHOWN], depth + 1) for n, item in enumerate(node)
            )
        elif isinstance(node, float) and not isfinite(node):
            raise BadGrammar(f"{path}: JSON has no such number")


def _target(schema: Json, reference: str, path: str) -> Json:
    if reference != "#" and not reference.startswith("#/"):
        place = f"{path}/$ref: {shown(reference)}"
        raise BadGrammar(f"{place} is not in this schema, and nothing is fetched")
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
