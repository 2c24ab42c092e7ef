"""Grammars of the llama engine: what they let through, and what is refused at once."""

import gc
import json
import re
from collections.abc import Iterator
from time import process_time

import numpy as np
import psutil
import pytest

from runnerd.core.batch import Sampling
from runnerd.engine.base import ConstraintKind
from runnerd.errors import BadGrammar

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from tests.engine.llama_vocabulary import Words, is_fault, loaded_words  # noqa: E402

GREETING = 'root ::= "Hello" (" world" | " moon")'
SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "kind": {"enum": ["plain", 'a "b" \\ c', "é", None, 2.5]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "code": {"type": "string", "pattern": r"^\w{2,4}-\d+(\.[a-c]{2})?$"},
        "note": {"type": "string", "minLength": 2, "maxLength": 6},
    },
    "required": ["count", "kind", "flags", "note"],
}


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with loaded_words() as words:
        yield words


def greedy(words: Words, grammar: str, kind: ConstraintKind = "grammar", **more: object) -> int:
    constraint = words.constraint(grammar, kind)
    words.samplers.open(0, Sampling(constraint=constraint, **more), ())  # type: ignore[arg-type]
    return 0


@pytest.fixture(autouse=True)
def closed(words: Words) -> Iterator[None]:
    yield
    words.samplers.close_all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_fits_is_taken(words: Words, temperature: float) -> None:
    greedy(words, GREETING, temperature=temperature)
    hello = words.token("Hello")
    assert words.pick(0, words.row({hello: 50.0})) == hello


@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_of_what_fits_the_likeliest_is_taken_when_the_favourite_does_not(
    words: Words, temperature: float
) -> None:
    greedy(words, GREETING, temperature=temperature)
    favourite, hello, start = words.token("The"), words.token("Hello"), words.token("H")
    assert words.pick(0, words.row({favourite: 50.0, hello: 9.0, start: 8.0})) == hello


def test_what_fits_is_found_wherever_it_is(words: Words) -> None:
    greedy(words, GREETING)
    row = words.row({}, rest=5.0) + np.arange(words.vocabulary.n_tokens, dtype=np.float32) / 1e4
    row[words.token("Hello")] = -90.0
    row[words.token("H")] = row[words.token("He")] = row[words.token("Hel")] = -95.0
    assert words.pick(0, row) == words.token("Hello")


def test_the_end_comes_when_nothing_else_fits(words: Words) -> None:
    greedy(words, 'root ::= "Hello"')
    (end, *_) = words.vocabulary.end_tokens
    assert words.pick(0, words.row({words.token("Hello"): 9.0})) == words.token("Hello")
    assert words.vocabulary.is_end(int(str(words.pick(0, words.row({end: -50.0})))))


def test_the_end_does_not_come_before(words: Words) -> None:
    greedy(words, GREETING)
    (end, *_) = words.vocabulary.end_tokens
    assert words.pick(0, words.row({end: 50.0, words.token("Hello"): 9.0})) == words.token("Hello")
    assert words.pick(0, words.row({end: 50.0, words.token(" world"): 9.0})) == words.token(
        " world"
    )


def test_a_complete_text_ends_though_the_end_is_ignored(words: Words) -> None:
    greedy(words, 'root ::= "Hello"', ignore_end=True)
    words.pick(0, words.row({words.token("Hello"): 9.0}))
    assert words.vocabulary.is_end(int(str(words.pick(0, words.row({})))))


def test_a_banned_end_does_not_come_though_nothing_else_is_left(words: Words) -> None:
    ban = tuple((token, -np.inf) for token in words.vocabulary.end_tokens)
    greedy(words, 'root ::= "Hello"', ignore_end=True, logit_bias=ban)
    words.pick(0, words.row({words.token("Hello"): 9.0}))
    assert is_fault(words.pick(0, words.row({})), "the grammar allows no token")


def test_a_grammar_that_no_token_fits_gives_a_fault(words: Words) -> None:
    greedy(words, 'root ::= "a" [z-a]')
    words.pick(0, words.row({words.token("a"): 9.0}))
    assert is_fault(words.pick(0, words.row({})), "the grammar allows no token")


def test_biases_and_grammar_that_leave_nothing_give_a_fault(words: Words) -> None:
    ban = tuple((token, -np.inf) for token in map(words.token, ["Hello", "H", "He", "Hel"]))
    greedy(words, 'root ::= "Hello"', logit_bias=ban)
    assert is_fault(words.pick(0, words.row({})), "the grammar allows no token")


def test_control_tokens_are_no_text(words: Words) -> None:
    greedy(words, "root ::= .*")
    control = words.token("<|im_start|>")
    assert words.pick(0, words.row({control: 50.0, words.token("a"): 9.0})) == words.token("a")


def test_a_token_too_long_for_an_ambiguous_grammar_is_said_in_shorter_ones(words: Words) -> None:
    greedy(words, 'root ::= (("="+)+)+ "1"')
    long, short = words.token("=" * 64), words.token("=" * 4)
    began_at = process_time()
    assert words.pick(0, words.row({long: 9.0, short: 8.0})) == short
    assert process_time() - began_at < 2.0


def test_a_refused_grammar_token_leaves_the_row_as_it_was(words: Words) -> None:
    greedy(words, GREETING, ignore_end=True, presence_penalty=1.0)
    row = words.row({words.token("The"): 50.0})
    before = row.copy()
    words.pick(0, row)
    assert np.array_equal(row, before)


def test_sequences_with_one_constraint_do_not_share_their_place(words: Words) -> None:
    constraint = words.constraint(GREETING)
    for seq_id in (0, 1):
        words.samplers.open(seq_id, Sampling(constraint=constraint), ())
    del constraint
    gc.collect()
    hello, world = words.token("Hello"), words.token(" world")
    row = words.row({world: 9.0, hello: 8.0})
    assert [words.pick(seq_id, row) for seq_id in (0, 1, 0, 1)] == [hello, hello, world, world]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_model_says_the_text_follows_the_schema(words: Words, seed: int) -> None:
    constraint = words.constraint(json.dumps(SCHEMA), "json_schema")
    sampling = Sampling(temperature=1.0, top_k=40, seed=seed, constraint=constraint)
    text = words.write(sampling, np.random.default_rng(seed), 400)
    assert text is not None
    value = json.loads(text)
    assert list(value) in (
        ["count", "kind", "flags", "note"],
        ["count", "kind", "flags", "note", "code"],
    )
    assert value["kind"] in SCHEMA["properties"]["kind"]["enum"]  # type: ignore[index]
    assert 1 <= len(value["flags"]) <= 3
    assert 2 <= len(value["note"]) <= 6
    assert re.fullmatch(r"[a-zA-Z0-9_]{2,4}-[0-9]+(\.[a-c]{2})?", value.get("code", "ab-1"))


def test_a_schema_that_contains_itself_is_followed(words: Words) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a_node"}}}
    schema = {"$ref": "#/$defs/a_node", "$defs": {"a_node": node}}
    constraint = words.constraint(json.dumps(schema), "json_schema")
    rng = np.random.default_rng(3)
    texts = [
        words.write(Sampling(temperature=1.0, seed=seed, constraint=constraint), rng, 60)
        for seed in range(4)
    ]
    assert all(json.loads(text).keys() <= {"next"} for text in texts if text is not None)


def test_white_space_between_tokens_comes_to_an_end(words: Words) -> None:
    blanks = ("\n", " ", "\t", "  ", "    ", "\n\n", "\n    ")
    bias = tuple((token, 100.0) for token in {words.token(blank) for blank in blanks})
    constraint = words.constraint(json.dumps(SCHEMA), "json_schema")
    for seed in range(5):
        sampling = Sampling(temperature=1.0, seed=seed, constraint=constraint, logit_bias=bias)
        text = words.write(sampling, np.random.default_rng(seed), 400)
        assert text is not None
        outside = re.sub(r'"(\\.|[^"\\])*"', "string", text)
        assert max(map(len, re.findall(r"\s+", outside))) <= 21


def test_a_long_text_leaves_no_memory_behind(words: Words) -> None:
    greedy(words, 'root ::= "[" ([a-z0-9, ]*) "]"')
    row = words.row({words.token("["): 9.0, words.token("a"): 8.0})
    row += np.random.default_rng(1).standard_normal(row.size, np.float32)
    process = psutil.Process()
    for _ in range(200):
        words.pick(0, row)
    before = process.memory_info().rss
    for _ in range(2000):
        words.pick(0, row)
    assert process.memory_info().rss - before < 2 * 2**20


NESTED = "(" * 60_000 + '"a"' + ")" * 60_000
DOUBLING = "\n".join(f"r{n} ::= | r{n + 1} r{n + 1}" for n in range(40))
BAD = {
    "empty": ("", "no rule called root"),
    "a name": ("root", "expected ::="),
    "undefined": ("root ::= thing", "thing"),
    "no root": ('other ::= "a"', "root"),
    "left recursion": ('root ::= root "a"', "root"),
    "indirect left recursion": ('root ::= a "x"\na ::= root', "leads back"),
    "left recursion behind nothing": ('root ::= e root "x" | "y"\ne ::= f\nf ::= "z" |', "root"),
    "open bracket": ('root ::= ("a"', "line 1, column 14"),
    "open literal": ('root ::= "a', "line 1, column 10"),
    "deep": (f"root ::= {NESTED}", "nested more than"),
    "many": ('root ::= "a"{1000000000}', "1000000000 repetitions"),
    "more digits than a number has": ('root ::= "a"{1' + "0" * 5000 + "}", "repetitions"),
    "many times many": ('root ::= "a"{1000}{1000}', "characters and references"),
    "backwards": ('root ::= "a"{5,2}', "at least 5"),
    "a text many times": (f'root ::= "{"a" * 5000}"{{1000}}', "characters and references"),
    "too many ways": (f'root ::= "x" r0\n{DOUBLING}\nr40 ::= "a"', "too many ways"),
    "optional parts in a row": ("root ::= " + '"="? ' * 24 + '"x"', "parts in a row"),
    "something optional many times": ('root ::= ("="?){24} "x"', "parts in a row"),
    "long": ('root ::= "a"\n' * 10**6, "bytes"),
    "NUL": ('root ::= "\0"', "NUL"),
    "half a character": ('root ::= "\ud800"', "half a character"),
    "unknown escape": (r'root ::= "\q"', r"unknown escape \q"),
    "nothing to repeat": ("root ::= *", "nothing to repeat"),
    "empty set": ("root ::= []", "without characters"),
    "token": ("root ::= <[5]>", "unexpected '<'"),
}
BAD_SCHEMAS = {
    "no JSON": ("{", "line 1"),
    "no object": ("[1]", "not a JSON object"),
    "unknown type": ('{"type": "thing"}', "thing"),
    "itself": ('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "leads back"),
    "a URL": ('{"items": {"$ref": "https://x.invalid/a"}}', "#/items/$ref"),
    "a file": ('{"$ref": "file:///etc/passwd"}', "nothing is fetched"),
    "nowhere": ('{"$ref": "#/a/b"}', "#/a/b is not there"),
    "many items": ('{"type": "array", "items": {}, "minItems": 1000000000}', "#/minItems"),
    "negative": ('{"type": "string", "minLength": -1}', "#/minLength"),
    "backwards": ('{"type": "string", "minLength": 3, "maxLength": 2}', "maxLength is 2"),
    "many values": (json.dumps({"enum": list(range(5000))}), "#/enum: 5000"),
    "too long": (json.dumps({"enum": list(range(100_000))}), "bytes"),
    "deep": ('{"items": ' * 5000 + "{}" + "}" * 5000, "deep"),
    "deeper": ("[" * 30_000, "deep"),
    "no number": ('{"const": 1e999}', "#/const"),
    "pattern many times": ('{"type": "string", "pattern": "^(a{90000}){90000}$"}', "90000"),
    "pattern with an end open": ('{"type": "string", "pattern": "a"}', "anchored"),
    "pattern of groups": (f'{{"pattern": "^{"(" * 99}a{")" * 99}$"}}', "groups"),
    "false": ('{"type": "array", "items": [false]}', "false"),
    "not a schema": ('{"properties": 5}', "#/properties: 5"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_grammar_is_refused_at_once_with_the_place(words: Words, case: str) -> None:
    check_refused_soon(words, "grammar", *BAD[case])


@pytest.mark.parametrize("case", BAD_SCHEMAS)
def test_a_bad_schema_is_refused_at_once_with_the_place(words: Words, case: str) -> None:
    check_refused_soon(words, "json_schema", *BAD_SCHEMAS[case])


def check_refused_soon(words: Words, kind: ConstraintKind, text: str, says: str) -> None:
    before, began_at = psutil.Process().memory_info().rss, process_time()
    with pytest.raises(BadGrammar, match=re.escape(says)):
        words.constraint(text, kind)
    assert process_time() - began_at < 2.0
    assert psutil.Process().memory_info().rss - before < 100 * 2**20


@pytest.mark.parametrize(
    "grammar",
    [
        r'root ::= "a" | "b" # one of both',
        'root ::= ("a"?)* "b"',
        'root ::= (\n "a"\n)\r\nother ::= root\n\n',
        r"root ::= [^\x00-\x1F\]\-] [\u00e9-\u00FF]{2,} .+",
        'root ::= "a"{0,1000}',
        "root ::= " + " | ".join(f'"{n}"' for n in range(2000)),
    ],
)
def test_a_good_grammar_is_taken(words: Words, grammar: str) -> None:
    words.samplers.open(0, Sampling(constraint=words.constraint(grammar)), ())
    assert isinstance(words.pick(0, words.row({})), int)


def test_a_nullable_repetition_ends(words: Words) -> None:
    greedy(words, 'root ::= ("a"?)* "b"')
    a, b = words.token("a"), words.token("b")
    row = words.row({a: 9.0})
    assert [words.pick(0, row) for _ in range(4)] == [a] * 4
    assert words.pick(0, words.row({b: 9.0})) == b
    assert words.vocabulary.is_end(int(str(words.pick(0, row))))
