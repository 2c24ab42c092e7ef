import numpy as np
import pytest

from runnerd.core.batch import SampleFault, Sampling
from runnerd.engine.reference.grammar import Literals, compiled
from runnerd.engine.reference.sampling import Sampler
from runnerd.engine.reference.tokenizer import END, END_TOKENS, N_VOCAB
from runnerd.errors import BadGrammar


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ('root ::= "yes"', (b"yes",)),
        ('root::="a"|"b"', (b"a", b"b")),
        ('  root  ::=\n  "a" |\n  "b"\n', (b"a", b"b")),
        (r'root ::= "\"\\\n\t\r"', (b'"\\\n\t\r',)),
        ('root ::= ""', (b"",)),
        ('root ::= "né🙂"', ("né🙂".encode(),)),
    ],
)
def test_a_grammar_is_a_choice_of_texts(text: str, texts: tuple[bytes, ...]) -> None:
    assert compiled("grammar", text) == Literals(texts)


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("", 0, "root ::="),
        ("stem ::= x", 0, "root ::="),
        ("root ::= x", 8, "a literal"),
        ('root ::= "a', 8, "a literal"),
        ('root ::= "a\nb"', 8, "a literal"),
        ('root ::= "a" "b"', 12, r"\| expected"),
        ('root ::= "a" |', 14, "a literal"),
        (r'root ::= "ab\q"', 12, r"one of"),
        ('root ::= "a\ud800"', 11, "a character"),
    ],
)
def test_a_grammar_of_another_form_is_refused_with_the_place(
    text: str, place: int, expected: str
) -> None:
    with pytest.raises(BadGrammar, match=rf"grammar at character {place}: .*{expected}") as caught:
        compiled("grammar", text)
    assert caught.value.details == {"place": place}


def test_json_schemas_are_refused() -> None:
    with pytest.raises(BadGrammar, match="the reference engine has no JSON schemas"):
        compiled("json_schema", "{}")


def test_only_what_goes_on_with_a_text_is_allowed() -> None:
    literals = Literals((b"ab", b"ac", b"a", b"x"))
    assert literals.allowed(b"") == [ord("a"), ord("x")]
    assert literals.allowed(b"a") == [ord("b"), ord("c"), *END_TOKENS]
    assert literals.allowed(b"ab") == list(END_TOKENS)


def test_a_model_that_never_ends_ends_where_a_constraint_does() -> None:
    row = np.zeros(N_VOCAB)
    row[list(END_TOKENS)] = -np.inf
    sampler = Sampler(Sampling(constraint=Literals((b"ok",))))
    assert [sampler.sample(row) for _ in range(3)] == [ord("o"), ord("k"), END]


def test_a_ban_of_the_only_way_on_is_a_fault_that_passes() -> None:
    sampling = Sampling(constraint=Literals((b"ok",)), logit_bias=((ord("k"), -np.inf),))
    sampler = Sampler(sampling)
    assert sampler.sample(np.zeros(N_VOCAB)) == ord("o")
    for _ in range(2):
        assert isinstance(sampler.sample(np.zeros(N_VOCAB)), SampleFault)


@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_penalties_choose_among_the_texts(temperature: float) -> None:
    sampling = Sampling(
        temperature=temperature,
        constraint=Literals((b"a", b"b")),
        presence_penalty=100.0,
    )
    assert Sampler(sampling, [ord("a")]).sample(np.zeros(N_VOCAB)) == ord("b")
