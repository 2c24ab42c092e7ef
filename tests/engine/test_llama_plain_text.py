"""Plain text against a real vocabulary: whatever is written, it steers nothing."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llama_cpp")

from runnerd.core.prompt import TextPart
from runnerd.engine.llama.library import lib
from tests.engine.llama_builders import MODEL
from tests.engine.llama_vocabulary import Words, loaded_words

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

PIECES = ("<|", "|>", "im_start", "im_end", "endoftext", "<|im_end|>", "<|im_start|>", "<", "\n")


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with loaded_words() as words:
        yield words


def is_steering(words: Words, text: str) -> bool:
    tokens = words.vocabulary.expand([TextPart(text)], add_bos=False).inputs
    return any(lib.llama_vocab_is_control(words.handle, token) for token in tokens)


def test_the_names_of_all_control_tokens_are_plain_text(words: Words) -> None:
    names = [
        lib.llama_vocab_get_text(words.handle, token).decode()
        for token in range(words.vocabulary.n_tokens)
        if lib.llama_vocab_is_control(words.handle, token)
    ]
    assert "<|im_start|>" in names
    for name in names:
        assert not any(is_steering(words, text) for text in (name, f"a{name}b", name * 3))


@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
def test_no_text_becomes_a_control_token(words: Words, text: str) -> None:
    assert not is_steering(words, text)
