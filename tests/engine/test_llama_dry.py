"""DRY takes from the logits what llama.cpp's own sampler takes, and costs little."""

import ctypes
import time
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runnerd.core.batch import Sampling
from runnerd.core.prompt import TextPart

pytest.importorskip("llama_cpp")

from runnerd.engine.llama.candidates import CANDIDATE
from runnerd.engine.llama.dry import Dry
from runnerd.engine.llama.library import lib
from tests.engine.llama_builders import MODEL
from tests.engine.llama_vocabulary import Words, loaded_words

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

Row = NDArray[np.float32]

BREAKERS = ("\n", ":", "a", "ab", " the", "e c", "cat.", "<|im_end|>", "é", "caba" * 12, "\ude00")
TEXTS = ("a", "b", "c", "ab", "cab", "\n", ":", ".", "the cat. the cat.", "é", "<|im_end|>", "caba")


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with loaded_words() as words:
        yield words


def ours(words: Words, sampling: Sampling, history: Sequence[int], said: Sequence[int]) -> Row:
    dry = Dry(sampling, words.handle, history)
    for token in said:
        dry.accept(token)
    row = np.zeros(words.vocabulary.n_tokens, np.float32)
    ids, penalties = dry.penalties()
    row[ids] -= penalties
    return row


def native(words: Words, sampling: Sampling, said: Sequence[int]) -> Row:
    texts = [text.encode(errors="replace") for text in sampling.dry_breakers]
    sampler = lib.llama_sampler_init_dry(
        words.handle,
        sampling.dry_multiplier,
        sampling.dry_base,
        sampling.dry_allowed_length,
        sampling.dry_last_n,
        (ctypes.c_char_p * len(texts))(*texts),
        len(texts),
    )
    for token in said:
        lib.llama_sampler_accept(sampler, token)
    entries = np.zeros(words.vocabulary.n_tokens, CANDIDATE)
    entries["id"] = np.arange(entries.size)
    data = entries.ctypes.data_as(lib.llama_token_data_p)
    array = lib.llama_token_data_array(data, entries.size, -1, False)
    lib.llama_sampler_apply(sampler, ctypes.byref(array))
    lib.llama_sampler_free(sampler)
    row: Row = entries["logit"].copy()
    return row


samplings = st.builds(
    Sampling,
    dry_multiplier=st.sampled_from([0.8, 3.3]),
    dry_base=st.sampled_from([1.0, 1.1, 1.75, 30.0]),
    dry_allowed_length=st.integers(1, 3),
    dry_last_n=st.sampled_from([1, 2, 5, 12, 40, 1024]),
    dry_breakers=st.lists(st.sampled_from(BREAKERS), max_size=3, unique=True).map(tuple),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sampling=samplings, texts=st.lists(st.sampled_from(TEXTS), max_size=60), data=st.data())
def test_the_penalties_are_those_of_llama_cpp(
    words: Words, sampling: Sampling, texts: list[str], data: st.DataObject
) -> None:
    said = [
        token
        for text in texts
        for token in words.vocabulary.expand([TextPart(text, special=True)], add_bos=False).inputs
    ]
    n_history = data.draw(st.integers(0, len(said)))
    got = ours(words, sampling, said[:n_history], said[n_history:])
    assert np.array_equal(got, native(words, sampling, said))


@pytest.mark.parametrize("breakers", [(), ("\n", ":"), ("ab", "caba")])
def test_a_long_text_that_goes_round_in_circles_is_the_same(
    words: Words, breakers: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(1)
    said = (rng.integers(300, 303, 900).tolist() + [7, 8, 9] * 60) * 2
    sampling = Sampling(dry_multiplier=0.8, dry_last_n=700, dry_breakers=breakers)
    for n_history in (0, 650, len(said)):
        got = ours(words, sampling, said[:n_history], said[n_history:])
        assert np.array_equal(got, native(words, sampling, said))


def test_a_repetition_of_any_length_bans_no_token(words: Words) -> None:
    row = ours(words, Sampling(dry_multiplier=100.0, dry_base=100.0), [5] * 500, ())
    assert row[5] < -1e38
    assert np.isfinite(row).all()


def test_breakers_that_are_in_every_third_token_cost_nothing_before_they_are_met(
    words: Words,
) -> None:
    history = tuple(np.random.default_rng(2).integers(0, 40_000, 1024).tolist())
    began_at = time.perf_counter()
    for breakers in list(combinations("etaoinsrhld", 8))[:20]:
        Dry(Sampling(dry_multiplier=1.0, dry_breakers=breakers), words.handle, history)
    assert time.perf_counter() - began_at < 1.0  # llama.cpp's own takes a second for four of them
