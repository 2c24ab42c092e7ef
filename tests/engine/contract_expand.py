"""Contract: text to inputs and back."""

import pytest

from runnerd.core.prompt import Part, TextPart, TokensPart
from runnerd.engine.base import Engine
from runnerd.errors import InvalidRequest
from tests.engine.driving import PROMPTS

TEXTS = ("", "hello", "  two  spaces ", "naïve café, 東京, 🙂🏽", "a\x00b", "tab\tnew\nline\r\n")


def bos_of(engine: Engine) -> tuple[int, ...]:
    """Return what comes before a prompt."""
    bos = engine.model.bos_token
    return () if bos is None or not engine.model.adds_bos else (bos,)


class ExpandContract:
    """Text to inputs and back."""

    @pytest.mark.parametrize("text", TEXTS)
    def test_the_bytes_of_the_tokens_joined_are_the_text(self, engine: Engine, text: str) -> None:
        inputs = engine.expand([TextPart(text)], add_bos=False).inputs
        assert b"".join(map(engine.token_bytes, inputs)) == text.encode()

    def test_bos_comes_once_and_first(self, engine: Engine) -> None:
        bos = bos_of(engine)
        parts: list[Part] = [TextPart("one"), TextPart("two", special=True), TextPart("three")]
        with_bos = engine.expand(parts).inputs
        assert with_bos == bos + engine.expand(parts, add_bos=False).inputs

    def test_bos_is_not_doubled_where_the_parts_begin_with_it(self, engine: Engine) -> None:
        if not bos_of(engine):
            pytest.skip("the model wants no BOS")
        (bos,) = bos_of(engine)
        assert engine.expand([TokensPart((bos, 5))]).inputs == (bos, 5)

    def test_an_empty_prompt_is_bos_alone_or_nothing(self, engine: Engine) -> None:
        bos = bos_of(engine)
        assert engine.expand([]).inputs == bos
        assert engine.expand([TextPart("")]).inputs == bos
        assert engine.expand([], add_bos=False).inputs == ()

    def test_special_text_gives_the_control_token(self, engine: Engine, special_name: str) -> None:
        inputs = engine.expand([TextPart(special_name, special=True)], add_bos=False).inputs
        assert len(inputs) == 1
        assert engine.token_bytes(inputs[0]) == b""

    def test_plain_text_never_gives_a_control_token(
        self, engine: Engine, special_name: str
    ) -> None:
        inputs = engine.expand([TextPart(special_name)], add_bos=False).inputs
        assert b"".join(map(engine.token_bytes, inputs)) == special_name.encode()

    @pytest.mark.parametrize("tail_is_special", [False, True])
    def test_a_plain_part_never_joins_its_neighbour_into_a_control_token(
        self, engine: Engine, special_name: str, tail_is_special: bool
    ) -> None:
        parts = [TextPart(special_name[:4]), TextPart(special_name[4:], special=tail_is_special)]
        inputs = engine.expand(parts, add_bos=False).inputs
        assert b"".join(map(engine.token_bytes, inputs)) == special_name.encode()

    @pytest.mark.parametrize("special", [False, True])
    def test_where_text_is_split_into_parts_does_not_matter(
        self, engine: Engine, special_name: str, special: bool
    ) -> None:
        text = f"some{special_name}thing else"
        whole = engine.expand([TextPart(text, special)])
        assert engine.expand([TextPart(text[:6], special), TextPart(text[6:], special)]) == whole

    @pytest.mark.parametrize("add_bos", [True, False])
    def test_special_text_behind_other_parts_is_a_border(
        self, engine: Engine, special_name: str, add_bos: bool
    ) -> None:
        turn = [TextPart(special_name, special=True), TextPart("say it")]
        prompt = engine.expand([*turn, *turn, TokensPart((5,)), *turn], add_bos=add_bos)
        names = engine.expand(turn[:1], add_bos=False).inputs
        begins = [i for i, token in enumerate(prompt.inputs) if (token,) == names]
        assert prompt.borders == tuple(begins[1:])

    def test_borders_stay_in_place_where_bos_is_not_doubled(
        self, engine: Engine, special_name: str
    ) -> None:
        if not bos_of(engine):
            pytest.skip("the model wants no BOS")
        (bos,) = bos_of(engine)
        parts: list[Part] = [TokensPart((bos, 5)), TextPart(special_name, special=True)]
        assert engine.expand(parts).borders == (2,)

    def test_token_ids_are_taken_as_they_are(self, engine: Engine) -> None:
        parts: list[Part] = [TextPart("hi"), TokensPart((3, 1, 2)), TextPart("ho")]
        inputs = engine.expand(parts, add_bos=False).inputs
        before = engine.expand(parts[:1], add_bos=False).inputs
        after = engine.expand(parts[2:], add_bos=False).inputs
        assert inputs == (*before, 3, 1, 2, *after)

    @pytest.mark.parametrize("below", [True, False])
    def test_a_token_outside_the_vocabulary_is_refused_with_both_numbers(
        self, engine: Engine, below: bool
    ) -> None:
        n_vocab = engine.model.n_vocab
        token = -1 if below else n_vocab
        with pytest.raises(InvalidRequest, match=rf"{token}\b.*\b{n_vocab - 1}\b") as caught:
            engine.expand([TextPart("a"), TokensPart((1, token))])
        assert caught.value.details["field"] == "prompt[1].tokens[1]"

    def test_text_that_is_not_unicode_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequest, match=r"prompt is '\\ud800', expected text without"):
            engine.expand([TextPart("lone \ud800 surrogate")])

    def test_end_tokens_end_a_generation_and_add_no_bytes(self, engine: Engine) -> None:
        assert engine.model.end_tokens
        for token in engine.model.end_tokens:
            assert engine.is_end(token)
            assert engine.token_bytes(token) == b""

    def test_text_does_not_end_a_generation(self, engine: Engine) -> None:
        inputs = engine.expand([TextPart(PROMPTS[0])], add_bos=False).inputs
        assert not any(map(engine.is_end, inputs))
