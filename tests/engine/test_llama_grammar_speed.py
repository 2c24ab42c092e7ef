"""Grammars that people write: the next character decides, and a token is soon found."""

import json
import random
from collections.abc import Iterator
from statistics import median
from time import thread_time

import numpy as np
import pytest

from runnerd.core.batch import Sampling
from runnerd.errors import BadGrammar

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.grammar_check import Checked, check_grammar  # noqa: E402
from runnerd.engine.llama.grammar_schema import schema_grammar  # noqa: E402
from tests.engine.llama_vocabulary import Words, loaded_words  # noqa: E402

RANDOM = random.Random(1)
LETTERS, HAN = "abcdefghijklmnopqrstuvwxyz", [chr(code) for code in range(0x4E00, 0x9FA5)]
NODES = [
    {
        "type": "object",
        "properties": {
            "kind": {"const": f"kind {n}"},
            "next": {"$ref": "#/$defs/node"},
            f"of {n}": {"type": "integer", "minimum": n},
        },
        "required": ["kind", "next", f"of {n}"],
    }
    for n in range(25)
]
SCHEMAS = {
    "random words": {"enum": ["".join(RANDOM.choices(LETTERS, k=12)) for _ in range(1000)]},
    "words that begin alike": {"enum": [f"item number {n:04d} of the list" for n in range(1000)]},
    "Chinese words": {"enum": ["".join(RANDOM.choices(HAN, k=3)) for _ in range(1000)]},
    "words in words": {"enum": ["a" * n for n in range(1, 200)]},
    "a tagged union": {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"anyOf": [*NODES, {"type": "null"}]}},
    },
    "optional properties": {
        "type": "object",
        "properties": {f"property {n}": {"type": ["boolean", "null"]} for n in range(200)},
    },
    "other properties": {
        "properties": {"a": {"type": "null"}, "ab": {"type": "null"}, "b": {"type": "null"}},
        "additionalProperties": {"enum": [1, 11, 2]},
    },
    "numbers": {"items": {"anyOf": [{"type": "integer"}, {"type": "number", "minimum": -12}]}},
}


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with loaded_words() as words:
        yield words


def checked(schema: object) -> Checked:
    return check_grammar(*schema_grammar(json.dumps(schema)))


@pytest.mark.parametrize("case", [case for case in SCHEMAS if case != "numbers"])
def test_in_a_natural_schema_the_next_character_decides(case: str) -> None:
    assert checked(SCHEMAS[case]).n_ways == 1


@pytest.mark.parametrize("case", SCHEMAS)
def test_a_token_of_a_natural_schema_is_soon_found(words: Words, case: str) -> None:
    constraint = words.constraint(json.dumps(SCHEMAS[case]), "json_schema")
    took_s: list[float] = []
    text = b""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        words.samplers.open(0, Sampling(temperature=1.0, seed=seed, constraint=constraint), ())
        for _ in range(40):
            row = rng.standard_normal(words.vocabulary.n_tokens, np.float32) * np.float32(4)
            began_at = thread_time()
            token = words.pick(0, row)
            took_s.append(thread_time() - began_at)
            assert isinstance(token, int), (token, text)
            if words.vocabulary.is_end(token):
                break
            text += words.vocabulary.token_bytes(token)
        words.samplers.close(0)
    assert median(took_s) < 0.02
    assert max(took_s) < 0.2


def test_words_of_a_grammar_that_begin_alike_begin_once() -> None:
    text = "root ::= " + " | ".join(f'"number {n}"' for n in range(3000))
    simpler = check_grammar(text, "root")
    assert simpler.n_ways == 1
    assert len(simpler.text) < 1000


def test_a_recursion_through_many_ways_that_begin_alike_decides_behind_them() -> None:
    ways = " | ".join(f'"-" root "{a}{b}"' for a in LETTERS[:5] for b in LETTERS[:4])
    assert check_grammar(f'root ::= "-" | {ways}', "root").n_ways == 1


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "x" | ' + " | ".join(f"[a-{z}] root [{z}-z]" for z in "bcdefghijklmnopqrstu"),
        'root ::= r0 "x"\nr0 ::= ((("--" "-"))+){1,3} | (("-" r0)*)?',
        'root ::= "-" root ("b" | "bc")? | "d"',
    ],
)
def test_a_recursion_with_too_many_ways_is_refused_with_the_rule(grammar: str) -> None:
    with pytest.raises(BadGrammar, match=r"^in .* more than 16 ways to go on begin with the same"):
        check_grammar(grammar, "root")


def test_a_recursion_that_never_comes_apart_is_left_as_it_is() -> None:
    text = 'root ::= a | b\na ::= "(" root ")"\nb ::= "(" b "]" | "."'
    assert check_grammar(text, "root").n_ways > 1


@pytest.mark.parametrize(
    ("names", "says"),
    [(["x" * 65], "a name of 65"), ([f"{n:050d}" for n in range(50)], "names of 2500")],
)
def test_names_that_others_must_differ_from_have_a_limit(names: list[str], says: str) -> None:
    properties = {name: {"type": "null"} for name in names}
    schema = {"properties": {"a": {"properties": properties, "additionalProperties": {}}}}
    with pytest.raises(BadGrammar, match=f"^#/properties/a/additionalProperties: beside {says}"):
        checked(schema)


def test_long_names_do_not_multiply_in_paths() -> None:
    began_at = thread_time()
    schema_grammar(json.dumps({"k" * 40_000: [1] * 7000}))
    assert thread_time() - began_at < 0.5
