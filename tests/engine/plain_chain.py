"""A plain llama.cpp sampler chain over the whole vocabulary: what our short cuts must equal."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Sampling
from runnerd.engine.llama.candidates import CANDIDATE
from runnerd.engine.llama.library import lib

Row = NDArray[np.float32]


class PlainChain:
    """Every sampler by itself, in llama.cpp's order, each over all candidates that are left."""

    def __init__(self, sampling: Sampling, n_vocab: int, history: tuple[int, ...] = ()) -> None:
        self._n_vocab = n_vocab
        self._bias = _bias(sampling, n_vocab)
        self._links = [link for link in _links(sampling, n_vocab) if link]
        n_penalties = sampling.penalty_last_n if sampling.has_penalties else 0
        for link, n_tokens in zip(self._links, (n_penalties, sampling.dry_last_n), strict=False):
            for token in history[max(0, len(history) - n_tokens) :]:
                lib.llama_sampler_accept(link, token)

    def pick(self, row: Row) -> int:
        """Pick a token and remember it."""
        entries = np.zeros(self._n_vocab, CANDIDATE)
        entries["id"] = np.arange(self._n_vocab)
        entries["logit"] = row
        array = _array(entries)
        lib.llama_sampler_apply(self._bias, ctypes.byref(array))
        entries = entries[entries["logit"] > -np.inf]  # what is banned is no candidate
        array = _array(entries)
        for link in self._links:
            lib.llama_sampler_apply(link, ctypes.byref(array))
        token: int = array.data[array.selected].id
        for link in self._links:
            lib.llama_sampler_accept(link, token)
        return token

    def free(self) -> None:
        """Free the samplers."""
        for link in (self._bias, *self._links):
            lib.llama_sampler_free(link)


@contextmanager
def plain_chain(
    sampling: Sampling, n_vocab: int, history: tuple[int, ...] = ()
) -> Iterator[PlainChain]:
    """Make a plain chain for a `with` block."""
    chain = PlainChain(sampling, n_vocab, history)
    try:
        yield chain
    finally:
        chain.free()


def _array(entries: NDArray[np.void]) -> ctypes.Structure:
    data = entries.ctypes.data_as(lib.llama_token_data_p)
    array: ctypes.Structure = lib.llama_token_data_array(data, entries.size, -1, False)
    return array


def _bias(sampling: Sampling, n_vocab: int) -> ctypes.c_void_p:
    biases = (lib.llama_logit_bias * len(sampling.logit_bias))(*sampling.logit_bias)
    link: ctypes.c_void_p = lib.llama_sampler_init_logit_bias(n_vocab, len(biases), biases)
    return link


def _links(sampling: Sampling, n_vocab: int) -> Iterator[ctypes.c_void_p]:
    yield lib.llama_sampler_init_penalties(
        n_vocab,
        sampling.penalty_last_n,
        sampling.repeat_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    yield lib.llama_sampler_init_dry(
        None,
        sampling.dry_multiplier,
        sampling.dry_base,
        sampling.dry_allowed_length,
        sampling.dry_last_n,
        None,
        0,
    )
    if sampling.temperature == 0.0:
        yield lib.llama_sampler_init_greedy()
        return
    temperature = lib.llama_sampler_init_temp_ext(
        sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
    )
    if sampling.mirostat:
        yield temperature
        tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
        if sampling.mirostat == 1:
            yield lib.llama_sampler_init_mirostat(n_vocab, sampling.seed, tau, eta, 100)
        else:
            yield lib.llama_sampler_init_mirostat_v2(sampling.seed, tau, eta)
        return
    yield lib.llama_sampler_init_top_n_sigma(sampling.top_n_sigma)
    yield lib.llama_sampler_init_top_k(sampling.top_k)
    yield lib.llama_sampler_init_typical(sampling.typical_p, 1)
    yield lib.llama_sampler_init_top_p(sampling.top_p, 1)
    yield lib.llama_sampler_init_min_p(sampling.min_p, 1)
    yield lib.llama_sampler_init_xtc(
        sampling.xtc_probability, sampling.xtc_threshold, 1, sampling.seed
    )
    yield temperature
    yield lib.llama_sampler_init_dist(sampling.seed)
