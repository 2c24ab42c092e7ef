"""Factoring of grammars: however one is rewritten, its texts stay the same."""

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.grammar_factoring import factored  # noqa: E402
from runnerd.engine.llama.grammar_text import Reader  # noqa: E402

TEXTS = ["".join(letters) for n in range(7) for letters in product("ab", repeat=n)]
PARTS = st.recursive(
    st.sampled_from(['"a"', '"b"', '"ab"', '"aa"', "[ab]", "one", "two"]),
    lambda part: st.one_of(
        st.tuples(part, part).map(" ".join),
        st.lists(part, min_size=2, max_size=4).map(lambda ways: f"({' | '.join(ways)})"),
        st.tuples(part, st.sampled_from(["?", "*", "+", "{1,2}"])).map(lambda p: f"({p[0]}){p[1]}"),
    ),
    max_leaves=8,
)


def as_regex(grammar: str, start: str) -> re.Pattern[str]:
    """Read a grammar without recursion as a regular expression."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())

    def put(match: re.Match[str]) -> str:
        literal, set_, name = match.groups()
        if name is not None:
            return f"(?:{expression(name)})"
        return set_ or f"(?:{literal[1:-1]})"

    def expression(name: str) -> str:
        return re.sub(r'("[^"]*")|(\[ab\])|([a-z][a-z0-9]*)', put, rules[name]).replace(" ", "")

    return re.compile(expression(start))


@given(st.lists(PARTS, min_size=2, max_size=4))
@settings(max_examples=300, deadline=None)
def test_a_factored_grammar_has_the_same_texts(ways: list[str]) -> None:
    grammar = f'root ::= {" | ".join(ways)}\none ::= "a" | "ab" two\ntwo ::= ("b" "a"?)? "b"'
    reader = Reader(grammar)
    reader.rules()
    before = as_regex(grammar, "root")
    after = as_regex(factored(reader.bodies, "root"), "root")
    for text in TEXTS:
        assert bool(before.fullmatch(text)) == bool(after.fullmatch(text))
