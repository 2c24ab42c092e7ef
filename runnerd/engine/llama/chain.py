"""A sequence's filters and draws: llama.cpp's sampler chain, in its documented order.

Logit bias, penalties and DRY come first, and are done elsewhere (`sampler_history`); then
top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, and the draw. Mirostat takes the
place of the filters. A temperature of 0 takes the likeliest token, and needs no chain.
"""

import ctypes
from collections.abc import Iterator

from runnerd.core.batch import Sampling
from runnerd.engine.llama.library import lib

MIN_TEMPERATURE = 1e-5  # logits divided by less can overflow; it is greedy long before
MAX_SEED = 2**32 - 2  # for the one above llama.cpp takes another seed each time
MIROSTAT_M = 100  # llama.cpp's default: of how many tokens mirostat 1 estimates the slope

# Typical sampling and mirostat take logarithms of probabilities, and one of 0 makes a NaN of
# their result. In float32 these are those of about 1e-38 of the largest.
LEAST_OF_LARGEST = 1e-36


class Chain:
    """A llama.cpp sampler chain, of a temperature above 0; it owns its links."""

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        self.pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in _links(sampling, n_vocab):
            assert link, "llama.cpp made no sampler"
            lib.llama_sampler_chain_add(self.pointer, link)

    def free(self) -> None:
        """Free the chain and its links."""
        lib.llama_sampler_free(self.pointer)


def _links(sampling: Sampling, n_vocab: int) -> Iterator[ctypes.c_void_p]:
    seed = min(sampling.seed, MAX_SEED)
    if sampling.mirostat:
        yield from _temperature(sampling)
        yield lib.llama_sampler_init_min_p(LEAST_OF_LARGEST, 1)
        tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
        if sampling.mirostat == 1:
            yield lib.llama_sampler_init_mirostat(n_vocab, seed, tau, eta, MIROSTAT_M)
        else:
            yield lib.llama_sampler_init_mirostat_v2(seed, tau, eta)
        return
    yield from _filters(sampling, seed)
    yield from _temperature(sampling)
    yield lib.llama_sampler_init_dist(seed)


def _filters(sampling: Sampling, seed: int) -> Iterator[ctypes.c_void_p]:
    if sampling.top_n_sigma > 0.0:
        yield lib.llama_sampler_init_top_n_sigma(sampling.top_n_sigma)
    if sampling.top_k > 0:
        yield lib.llama_sampler_init_top_k(sampling.top_k)
    if sampling.typical_p < 1.0:
        yield lib.llama_sampler_init_min_p(LEAST_OF_LARGEST, 1)
        yield lib.llama_sampler_init_typical(sampling.typical_p, 1)
    if sampling.top_p < 1.0:
        yield lib.llama_sampler_init_top_p(sampling.top_p, 1)
    if sampling.min_p > 0.0:
        yield lib.llama_sampler_init_min_p(sampling.min_p, 1)
    if sampling.xtc_probability > 0.0:
        yield lib.llama_sampler_init_xtc(sampling.xtc_probability, sampling.xtc_threshold, 1, seed)


def _temperature(sampling: Sampling) -> Iterator[ctypes.c_void_p]:
    temperature = max(sampling.temperature, MIN_TEMPERATURE)
    if sampling.dynatemp_range > 0.0:
        yield lib.llama_sampler_init_temp_ext(
            temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
        )
    elif temperature != 1.0:
        yield lib.llama_sampler_init_temp(temperature)
