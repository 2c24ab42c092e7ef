"""Picks tokens with llama.cpp's sampler chains, over one candidate array that all share.

A private array per sequence, as llama_sampler_sample keeps, is 3 MiB for a large vocabulary
and makes the sequences push each other out of the CPU's cache.
"""

import ctypes
from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np
import numpy.typing as npt

from runnerd.core.batch import Sampled, SampleFault, Sampling
from runnerd.engine.llama.library import lib

# As llama_token_data.
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
MIN_TEMPERATURE = 1e-5  # logits divided by less can overflow; it is greedy long before

Rows = npt.NDArray[np.float32]


class Samplers:
    """The open samplers, by sequence. One call at a time."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._candidates = np.zeros(n_vocab, CANDIDATE)
        self._data = self._candidates.ctypes.data_as(lib.llama_token_data_p)
        self._array = lib.llama_token_data_array()
        self._chains: dict[int, _Chain | None] = {}

    def open(self, seq_id: int, sampling: Sampling, history: tuple[int, ...]) -> None:
        """Make a sequence's sampler, with the tokens that its penalties look back on."""
        assert seq_id not in self._chains, f"sequence {seq_id} has a sampler"
        greedy = sampling.temperature == 0.0 and not sampling.has_penalties
        self._chains[seq_id] = None if greedy else _Chain(sampling, self._n_vocab, history)

    def close(self, seq_id: int) -> None:
        """Free a sequence's sampler."""
        chain = self._chains.pop(seq_id)
        if chain is not None:
            chain.free()

    def close_all(self) -> None:
        """Free every sampler."""
        for seq_id in tuple(self._chains):
            self.close(seq_id)

    def sample(self, seq_ids: Sequence[int], rows: Rows) -> tuple[Sampled, ...]:
        """Pick the next token of each sequence from its row of logits.

        A row that gives no token costs its sequence no draw, and the other rows nothing.
        """
        likeliest: list[int] = rows.argmax(axis=1).tolist()  # of a NaN, where there is one
        return tuple(map(self._pick, seq_ids, rows, likeliest))

    def _pick(self, seq_id: int, row: Rows, likeliest: int) -> Sampled:
        if not isfinite(row[likeliest]):
            return SampleFault(f"the largest logit is {row[likeliest]}")
        chain = self._chains[seq_id]
        if chain is None:
            return likeliest
        self._candidates["id"] = self._ids
        self._candidates["logit"] = row
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._data, self._n_vocab, -1, False
        chain.apply(array)
        if not 0 <= array.selected < array.size:
            return SampleFault("the sampler found nothing to choose from")
        token: int = array.data[array.selected].id
        chain.accept(token)
        return token


class _Chain:
    """A llama.cpp sampler chain; it owns its links."""

    def __init__(self, sampling: Sampling, n_vocab: int, history: tuple[int, ...]) -> None:
        self._pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in _links(sampling, n_vocab):
            assert link, "llama.cpp made no sampler"
            lib.llama_sampler_chain_add(self._pointer, link)
        if sampling.has_penalties:
            for token in history[-sampling.penalty_last_n :]:
                self.accept(token)

    def apply(self, array: ctypes.Structure) -> None:
        lib.llama_sampler_apply(self._pointer, ctypes.byref(array))

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._pointer, token)

    def free(self) -> None:
        lib.llama_sampler_free(self._pointer)


def _links(sampling: Sampling, n_vocab: int) -> Iterator[ctypes.c_void_p]:
    """Make the links that change something, in llama-server's order."""
    if sampling.has_penalties:
        yield lib.llama_sampler_init_penalties(
            n_vocab,
            sampling.penalty_last_n,
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
    if sampling.temperature == 0.0:
        yield lib.llama_sampler_init_greedy()
        return
    if sampling.top_k > 0:
        yield lib.llama_sampler_init_top_k(sampling.top_k)
    if sampling.top_p < 1.0:
        yield lib.llama_sampler_init_top_p(sampling.top_p, 1)
    if sampling.min_p > 0.0:
        yield lib.llama_sampler_init_min_p(sampling.min_p, 1)
    if sampling.temperature != 1.0:
        yield lib.llama_sampler_init_temp(max(sampling.temperature, MIN_TEMPERATURE))
    yield lib.llama_sampler_init_dist(sampling.seed)
