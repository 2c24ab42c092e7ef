"""Grammars of the llama engine: none holds up a token, and what is compiled is kept."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import process_time, thread_time

import numpy as np
import pytest

from runnerd.core.batch import Sampling
from runnerd.engine.llama.grammar import MOST_CACHED
from runnerd.errors import BadGrammar

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from tests.engine.llama_vocabulary import Words, loaded_words  # noqa: E402

LIST = r"root ::= item+" "\n" r'item ::= "- " [^\r\n]+ "\n"'
JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root ::= (expression "=" space term "\n")+
expression ::= term ([-+*/] space term)*
term ::= name | number | "(" space expression ")" space
name ::= [a-z] [a-z0-9_]* space
number ::= [0-9]+ space
space ::= [ \t\n]*
"""
CHESS = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
C = r"""
root ::= declaration*
declaration ::= type name "(" parameter? ")" "{" statement* "}"
type ::= ("int" | "float" | "char") " "
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= type name
statement ::= type name " = " expression ";" | name " = " expression ";" |
  name "(" (expression ("," expression)*)? ")" ";" | "return " expression ";" |
  "while (" condition ") {" statement* "}" |
  "if (" condition ") {" statement* "}" (" else {" statement* "}")?
condition ::= expression ("==" | "<=" | "<" | ">") expression
expression ::= term (("+" | "-") term)*
term ::= factor (("*" | "/") factor)*
factor ::= name | [0-9]+ | "-" factor | "(" expression ")" | name "(" expression? ")"
"""
USUAL = {"list": LIST, "json": JSON, "arithmetic": ARITHMETIC, "chess": CHESS, "c": C}


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with loaded_words() as words:
        yield words


def test_no_token_of_a_hostile_grammar_takes_half_a_second() -> None:
    """100 of them, in a process of their own: what does not return cannot be stopped."""
    arguments = [sys.executable, "-m", "tests.engine.hostile_grammars", "1"]
    done = subprocess.run(arguments, capture_output=True, timeout=240, check=True)
    tried = dict(json.loads(line) for line in done.stdout.splitlines())
    assert len(tried) > 90  # a few are twice there
    slow = {grammar: took_s for grammar, took_s in tried.items() if (took_s or 0.0) > 0.5}
    assert not slow


@pytest.mark.parametrize("kind", USUAL)
def test_a_usual_grammar_is_taken_and_soon_says_what_fits(words: Words, kind: str) -> None:
    rng = np.random.default_rng(1)
    constraint = words.constraint(USUAL[kind])
    words.samplers.open(0, Sampling(temperature=1.0, seed=1, constraint=constraint), ())
    slowest = 0.0
    for _ in range(60):
        row = rng.standard_normal(words.vocabulary.n_tokens, np.float32) * np.float32(4)
        began_at = thread_time()
        token = words.pick(0, row)
        slowest = max(slowest, thread_time() - began_at)
        assert isinstance(token, int), token
        if words.vocabulary.is_end(token):
            break
    words.samplers.close(0)
    assert slowest < 0.2


def test_where_a_grammar_can_be_read_in_many_ways_the_same_tokens_fit(words: Words) -> None:
    """The plain grammar is tested in whole tokens, the other byte by byte."""
    plain = words.constraint('root ::= [a-zA-Z é]* "."')
    many = words.constraint('root ::= ([a-z A-Z]* [é]*)* "."')
    assert plain.n_ways == 1
    assert many.n_ways > 1
    rng = np.random.default_rng(2)
    texts = []
    for constraint in (plain, many):
        rng = np.random.default_rng(2)
        sampling = Sampling(temperature=1.0, seed=4, constraint=constraint)
        texts.append(words.write(sampling, rng, 40))
    assert texts[0] == texts[1]


def test_a_grammar_is_compiled_once(words: Words) -> None:
    text = "root ::= " + " | ".join(f'"number {n}"' for n in range(3000))
    first = words.constraint(text)
    began_at = process_time()
    assert words.constraint(text) is first
    assert process_time() - began_at < 0.001


def test_the_kind_tells_equal_texts_apart(words: Words) -> None:
    text = '{"type": "string"}'
    words.constraint(text, "json_schema")
    with pytest.raises(BadGrammar):
        words.constraint(text)


def test_the_grammar_used_longest_ago_makes_room(words: Words) -> None:
    first, second = words.constraint('root ::= "1st"'), words.constraint('root ::= "2nd"')
    for n in range(MOST_CACHED - 1):
        assert words.constraint('root ::= "1st"') is first
        words.constraint(f'root ::= "other {n}"')
    assert words.constraint('root ::= "1st"') is first
    assert words.constraint('root ::= "2nd"') is not second


def test_long_texts_make_room_sooner(words: Words) -> None:
    first = words.constraint('root ::= "a"')
    for n in range(6):
        words.constraint(f'root ::= "b{n}" #' + "x" * 200_000)
    assert words.constraint('root ::= "a"') is not first


def test_threads_get_what_they_ask_for(words: Words) -> None:
    def is_its_own(n: int) -> bool:
        constraint = words.constraint(f'root ::= "{n % 40}"')
        return constraint is not None and constraint.n_ways == 1

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_its_own, range(400)))
