"""Prompts: exact in length, seeded, and different from each other."""

import pytest

from loadtest.prompts import WORDS, PromptTooShort, cut, prompt_texts


def test_the_same_seed_gives_the_same_texts() -> None:
    assert prompt_texts(7, 2, 4, 30) == prompt_texts(7, 2, 4, 30)


def test_another_seed_gives_other_texts() -> None:
    assert not set(prompt_texts(7, 0, 4, 30)) & set(prompt_texts(8, 0, 4, 30))


def test_no_two_prompts_of_a_run_begin_with_the_same_two_words() -> None:
    texts = [text for n_round in range(20) for text in prompt_texts(1, n_round, 16, 12)]
    assert len({tuple(text.split()[:2]) for text in texts}) == 320


def test_the_prompts_of_one_round_begin_with_different_words() -> None:
    openings = {text.split()[0] for text in prompt_texts(1, 0, len(WORDS), 12)}
    assert len(openings) == len(WORDS)


def test_a_text_has_a_word_for_each_token_asked_for() -> None:
    assert all(len(text.split()) >= 128 for text in prompt_texts(1, 0, 16, 128))


def test_a_prompt_is_cut_to_the_tokens_asked_for() -> None:
    assert cut(range(200), 128) == list(range(128))


def test_a_text_of_too_few_tokens_is_an_error() -> None:
    with pytest.raises(PromptTooShort, match="5 tokens, 6 are wanted"):
        cut(range(5), 6)
