"""JSON schemas of the llama engine: every keyword is obeyed, or refused with its path."""

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.core.batch import Sampling
from runnerd.errors import BadGrammar

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.grammar_numbers import integers, reals  # noqa: E402
from runnerd.engine.llama.grammar_pattern import gbnf_pattern  # noqa: E402
from runnerd.engine.llama.grammar_schema import schema_grammar  # noqa: E402
from tests.engine.llama_vocabulary import Words, loaded_words  # noqa: E402


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with loaded_words() as words:
        yield words


def written(words: Words, schema: object, seed: int) -> object:
    """Let random logits write a value, with a bias towards its end."""
    constraint = words.constraint(json.dumps(schema), "json_schema")
    ends = tuple((words.token(text), 8.0) for text in ('"', "}", "]"))
    sampling = Sampling(temperature=1.0, seed=seed, constraint=constraint, logit_bias=ends)
    text = words.write(sampling, np.random.default_rng(seed), 2000)
    assert text is not None
    return json.loads(text)


def as_regex(grammar: str) -> re.Pattern[str]:
    """Read alternatives of digits as a regular expression: they mean the same."""
    return re.compile(re.sub(r'"([^"]*)"', lambda m: re.escape(m[1]), grammar).replace(" ", ""))


BOUNDS = st.one_of(st.none(), st.integers(-(10**6), 10**6), st.integers(-30, 30))


@given(BOUNDS, BOUNDS, st.integers(-(10**6), 10**6), st.integers(-2, 2))
@settings(max_examples=300, deadline=None)
def test_an_integer_is_written_exactly_if_it_is_between_the_bounds(
    least: int | None, most: int | None, anywhere: int, beside: int
) -> None:
    if least is not None and most is not None and most < least:
        with pytest.raises(BadGrammar):
            integers(least, most)
        return
    pattern = as_regex(integers(least, most))
    for value in (anywhere, (least or 0) + beside, (most or 0) + beside):
        is_within = (least is None or least <= value) and (most is None or value <= most)
        assert bool(pattern.fullmatch(str(value))) == is_within


@given(st.integers(-300, 300), st.integers(0, 300), st.decimals(-700, 700, places=2))
@settings(max_examples=300, deadline=None)
def test_a_number_is_written_exactly_if_it_is_between_the_bounds(
    least: int, width: int, value: object
) -> None:
    pattern = as_regex(reals(least, least + width))
    is_within = least <= float(str(value)) <= least + width
    assert bool(pattern.fullmatch(str(value).replace("-0.00", "0.00"))) == is_within


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        ({"minimum": 0, "maximum": 150}, range(151)),
        ({"exclusiveMinimum": -3, "exclusiveMaximum": 3}, range(-2, 3)),
        ({"minimum": 1, "exclusiveMinimum": True, "maximum": 4}, range(2, 5)),
        ({"minimum": 0.5, "maximum": 2.5}, range(1, 3)),
        ({"minimum": 998, "maximum": 1002.0}, range(998, 1003)),
    ],
)
def test_bounds_of_integers_are_obeyed(
    words: Words, bounds: dict[str, object], allowed: range
) -> None:
    for seed in range(8):
        assert written(words, {"type": "integer", **bounds}, seed) in allowed


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "pattern": "^(a$"}, "#/pattern: a ( that"),
        ({"type": "string", "pattern": "^a)$"}, "#/pattern: a ) at 2"),
        ({"type": "string", "pattern": "^[a$"}, "#/pattern"),
        ({"type": "string", "pattern": "^*a$"}, "#/pattern: nothing to repeat"),
        ({"type": "string", "pattern": "^a**$"}, "#/pattern: nothing to repeat"),
        ({"type": "string", "pattern": "^(?=a)$"}, "#/pattern"),
        ({"type": "string", "pattern": "^[z-a]$"}, "#/pattern"),
        ({"type": "string", "pattern": "^a{3,2}$"}, "#/pattern"),
        ({"type": "string", "pattern": "^a|b$"}, "#/pattern: the | at 2"),
        ({"type": "string", "pattern": r"^a\b$"}, "#/pattern"),
        ({"type": "string", "pattern": r"^\1$"}, "#/pattern"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "#/maxLength"),
        ({"properties": {"a": {"type": "integer", "multipleOf": 5}}}, "#/properties/a/multipleOf"),
        ({"type": "number", "exclusiveMinimum": 0}, "#/exclusiveMinimum"),
        ({"type": "number", "minimum": 0.5}, "#/minimum"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "#: no number"),
        ({"type": "integer", "minimum": 1e300}, "#: a bound"),
        ({"type": "integer", "minimum": "1"}, "#/minimum"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
        ({"type": "array", "contains": {}}, "#/contains"),
        ({"prefixItems": [{"type": "null"}], "minItems": 2}, "#/prefixItems"),
        ({"type": "object", "minProperties": 1}, "#/minProperties"),
        ({"type": "object", "patternProperties": {}}, "#/patternProperties"),
        ({"type": "object", "required": ["a"]}, "#/required"),
        ({"not": {"type": "null"}}, "#/not"),
        ({"if": {}, "then": {}}, "#/if"),
        ({"anyOf": [{"type": "null"}], "minLength": 3}, "#/minLength: not supported beside anyOf"),
        ({"type": "string", "anyOf": [{"type": "null"}]}, "#/type"),
        ({"anyOf": []}, "#/anyOf"),
        ({"anyOf": [{"type": "null"}, {"type": "thing"}]}, "#/anyOf/1/type"),
        ({"type": "string", "enum": ["a", 1]}, "#/enum: 1"),
        ({"enum": []}, "#/enum"),
        ({"allOf": [{"properties": {"a": {}}}, {"minProperties": 2}]}, "#/allOf/1/minProperties"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "x"}}}, "#/$defs/a/type"),
        ({"$ref": "#/$defs/a", "minLength": 1, "$defs": {"a": {}}}, "#/minLength"),
        ({"anyOf": [{"$ref": "#"}]}, "#/anyOf/0/$ref: # leads back"),
        ({"type": []}, "#/type"),
        ({"properties": {"a": False}}, "#/properties/a"),
    ],
)
def test_what_is_not_obeyed_is_refused_with_its_path(schema: object, path: str) -> None:
    with pytest.raises(BadGrammar, match="^" + re.escape(path)):
        schema_grammar(json.dumps(schema))


def test_annotations_and_unknown_words_are_ignored(words: Words) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "x",
        "$comment": "x",
        "title": "minLength",
        "description": "x",
        "default": {"$ref": 5, "minItems": -1},
        "examples": [{"pattern": "("}],
        "format": "email",
        "deprecated": True,
        "x-order": 3,
        "type": "boolean",
        "minimum": 3,  # says nothing about a boolean
    }
    assert isinstance(written(words, schema, 1), bool)


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ({"type": "string", "format": "date"}, r"\d{4}-\d\d-\d\d"),
        ({"format": "date-time"}, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*"),
        (
            {"type": "string", "format": "uuid"},
            r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        ),
        ({"pattern": r"^[ -~]{3,5}$"}, r"[ -~]{3,5}"),
        ({"pattern": r"^(?:a\"|[\^b\]-]+?)\\$"}, r'(?:a"|[\^b\]-]+?)\\'),
        ({"pattern": r"^.[^a-z]\.\d{2,}?$"}, r".[^a-z]\.\d{2,}"),
        ({"pattern": r"^(é|日本){2}\n$"}, r"(é|日本){2}\n"),
        ({"type": ["string", "null"], "maxLength": 2, "minLength": 2}, r"..|None"),
    ],
)
def test_a_string_follows_its_pattern_or_format(words: Words, schema: object, pattern: str) -> None:
    for seed in range(4):
        value = str(written(words, schema, seed))
        assert re.fullmatch(pattern, value, re.DOTALL), value


def test_properties_that_are_not_named_have_no_name_of_those_that_are(words: Words) -> None:
    schema = {
        "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}, "b": {"type": "null"}},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
    }
    kinds = {"a": int, "ab": type(None), "b": type(None)}
    n_others = 0
    for seed in range(30):
        value = written(words, schema, seed)
        assert isinstance(value, dict)
        assert "a" in value
        for name, one in value.items():
            assert type(one) is kinds.get(name, bool)
            n_others += name not in kinds
    assert n_others > 0


def test_all_of_joins_properties(words: Words) -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "null"}}}],
        "required": ["b"],
        "$defs": {"base": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    }
    value = written(words, schema, 1)
    assert isinstance(value, dict)
    assert value.keys() == {"a", "b"}


def test_tuples_and_lengths_of_arrays_are_obeyed(words: Words) -> None:
    pair = {"prefixItems": [{"type": "null"}, {"const": 5}], "items": False}
    schema = {"type": "array", "items": pair, "minItems": 2, "maxItems": 3}
    for seed in range(6):
        assert written(words, schema, seed) in ([[None, 5]] * 2, [[None, 5]] * 3)


@given(st.text(max_size=12))
@settings(max_examples=300, deadline=None)
def test_a_pattern_is_translated_or_refused(text: str) -> None:
    try:
        gbnf_pattern(f"^{text}$")
    except BadGrammar:
        return
    assert re.compile(text).pattern == text  # what is translated is a pattern
