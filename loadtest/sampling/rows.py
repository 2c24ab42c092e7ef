"""The cost of picking tokens from rows of a large vocabulary, ours and llama.cpp's own way.

A private chain is what llama_sampler_sample does for a sequence: it writes all tokens and their
logits into an array of the chain's own, and applies the chain to that.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from time import thread_time

import numpy as np

from runnerd.core.batch import Sampling
from runnerd.engine.llama.candidates import CANDIDATE
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.sampler import Samplers

N_ROWS, N_VOCAB = 16, 262_144
SPREAD = 3.0  # of the logits: 40 of them hold most of the weight
TURNS_PER_ROUND = 8  # a turn takes some 10 ms


def measure_rows(
    n_rounds: int, usual_sampling: Sampling
) -> tuple[list[float], list[float], list[float]]:
    """Return the CPU seconds of each turn: private chains, our samplers, and our greedy ones."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((N_ROWS, N_VOCAB), np.float32) * np.float32(SPREAD)
    chains = [_private_chain(usual_sampling, seed) for seed in range(N_ROWS)]
    arrays = [np.zeros(N_VOCAB, CANDIDATE) for _ in range(N_ROWS)]
    ids = np.arange(N_VOCAB, dtype=np.int32)

    def private() -> None:
        for chain, entries, row in zip(chains, arrays, rows, strict=True):
            entries["id"], entries["logit"] = ids, row
            data = entries.ctypes.data_as(lib.llama_token_data_p)
            array = lib.llama_token_data_array(data, N_VOCAB, -1, False)
            lib.llama_sampler_apply(chain, ctypes.byref(array))

    usual, greedy = _samplers(usual_sampling), _samplers(Sampling())
    every = range(N_ROWS)
    sides = (private, lambda: usual.sample(every, rows), lambda: greedy.sample(every, rows))
    for side in sides:
        side()  # the first time touches new memory
    times = [[_seconds(side) for side in sides] for _ in range(TURNS_PER_ROUND * n_rounds)]
    usual.close_all()
    greedy.close_all()
    for chain in chains:
        lib.llama_sampler_free(chain)
    private_s, usual_s, greedy_s = (list(side) for side in zip(*times, strict=True))
    return private_s, usual_s, greedy_s


def _private_chain(sampling: Sampling, seed: int) -> ctypes.c_void_p:
    chain: ctypes.c_void_p = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for link in (
        lib.llama_sampler_init_top_k(sampling.top_k),
        lib.llama_sampler_init_top_p(sampling.top_p, 1),
        lib.llama_sampler_init_temp(sampling.temperature),
        lib.llama_sampler_init_dist(seed),
    ):
        lib.llama_sampler_chain_add(chain, link)
    return chain


def _samplers(sampling: Sampling) -> Samplers:
    samplers = Samplers(N_VOCAB)
    for seq_id in range(N_ROWS):
        samplers.open(seq_id, replace(sampling, seed=seq_id), ())
    return samplers


def _seconds(side: Callable[[], object]) -> float:
    began_at = thread_time()
    side()
    return thread_time() - began_at
