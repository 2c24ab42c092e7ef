"""A request's parts: what is refused, and what is joined."""

import pytest

from runnerd.core.parts import check_tokens, encoded, joined
from runnerd.core.prompt import Part, TextPart, TokensPart
from runnerd.errors import InvalidRequest

N_VOCAB = 260


def test_adjoining_texts_of_one_kind_are_one() -> None:
    parts: list[Part] = [
        TextPart("a"),
        TextPart("b"),
        TextPart("c", special=True),
        TokensPart((1,)),
        TextPart("d"),
    ]
    expected = [TextPart("ab"), TextPart("c", special=True), TokensPart((1,)), TextPart("d")]
    assert list(joined(parts, N_VOCAB)) == expected


def test_parts_that_hold_nothing_are_passed_over() -> None:
    parts: list[Part] = [TextPart("a"), TokensPart(()), TextPart("", special=True), TextPart("b")]
    assert list(joined(parts, N_VOCAB)) == [TextPart("ab")]


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31 - 1])
def test_the_first_token_outside_the_vocabulary_is_named_by_where_the_client_wrote_it(
    token: int,
) -> None:
    parts: list[Part] = [TextPart("a"), TextPart("b"), TokensPart((0, N_VOCAB - 1, token, -7))]
    with pytest.raises(InvalidRequest) as caught:
        list(joined(parts, N_VOCAB))
    assert caught.value.details == {
        "field": "prompt[2].tokens[2]",
        "value": str(token),
        "limit": "a token id from 0 to 259",
    }
    assert str(caught.value) == (
        f"prompt[2].tokens[2] is {token}, expected a token id from 0 to 259"
    )


@pytest.mark.parametrize("tokens", [(), (0,), (N_VOCAB - 1,)])
def test_tokens_of_the_vocabulary_are_not_refused(tokens: tuple[int, ...]) -> None:
    check_tokens(tokens, N_VOCAB, "tokens")


def test_text_is_utf8() -> None:
    assert encoded("n\xe9\0") == b"n\xc3\xa9\0"


def test_half_of_a_surrogate_pair_is_named_in_ascii() -> None:
    with pytest.raises(InvalidRequest) as caught:
        encoded("a\udc80b")
    assert caught.value.details["value"] == "'\\udc80'"
