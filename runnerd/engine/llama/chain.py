"""A sequence's filters and draws: llama.cpp's sampler chain, in its documented order.

Logit bias and penalties come first, and are done elsewhere (`sampler_history`); then DRY,
top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, and the draw. Mirostat takes the
place of the filters: DRY, temperature, mirostat. A temperature of 0 takes the likeliest token.
"""

import ctypes
import weakref
from collections.abc import Iterator

from runnerd.core.batch import Sampling
from runnerd.engine.llama.library import lib

MIN_TEMPERATURE = 1e-5  # logits divided by less can overflow; it is greedy long before
MAX_SEED = 2**32 - 2  # for the one above llama.cpp takes another seed each time
MIROSTAT_M = 100  # llama.cpp's default: of how many tokens mirostat 1 estimates the slope

# Typical sampling and mirostat take logarithms of probabilities, and one of 0 makes a NaN of
# their result. In float32 these are those of about 1e-38 of the largest.
LEAST_OF_LARGEST = 1e-36
MOST_PROTOTYPES = 16  # of DRY; a request rarely has parameters of its own

Prototypes = dict[tuple[object, ...], "Prototype"]


class Prototype:
    """A DRY sampler to clone. To make one takes a look at the whole vocabulary per breaker."""

    def __init__(self, sampling: Sampling, vocab: int) -> None:
        # C strings: of a breaker with a NUL the part before it counts.
        breakers = [text.encode(errors="replace") for text in dict.fromkeys(sampling.dry_breakers)]
        assert vocab or not breakers, "breakers take a vocabulary"
        pointer = lib.llama_sampler_init_dry(
            vocab,
            sampling.dry_multiplier,
            sampling.dry_base,
            sampling.dry_allowed_length,
            sampling.dry_last_n,
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )
        assert pointer, "llama.cpp made no sampler"
        self._pointer = pointer
        weakref.finalize(self, lib.llama_sampler_free, pointer).atexit = False

    def clone(self) -> ctypes.c_void_p:
        """Return a copy; whoever asks owns it."""
        copy: ctypes.c_void_p = lib.llama_sampler_clone(self._pointer)
        return copy


class Chain:
    """A llama.cpp sampler chain; it owns its links."""

    def __init__(self, sampling: Sampling, n_vocab: int, dry: Prototype | None) -> None:
        self.pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in _links(sampling, n_vocab, dry):
            assert link, "llama.cpp made no sampler"
            lib.llama_sampler_chain_add(self.pointer, link)

    def accept(self, token: int) -> None:
        """Tell DRY of a token."""
        lib.llama_sampler_accept(self.pointer, token)

    def free(self) -> None:
        """Free the chain and its links."""
        lib.llama_sampler_free(self.pointer)


def dry_prototype(sampling: Sampling, vocab: int, made: Prototypes) -> Prototype | None:
    """Return the DRY sampler for a request, out of those made before if it is among them."""
    if sampling.dry_multiplier <= 0.0 or sampling.dry_last_n == 0:
        return None
    key = (
        sampling.dry_multiplier,
        sampling.dry_base,
        sampling.dry_allowed_length,
        sampling.dry_last_n,
        sampling.dry_breakers,
    )
    prototype = made.pop(key, None) or Prototype(sampling, vocab)
    made[key] = prototype  # the last used is the last to go
    while len(made) > MOST_PROTOTYPES:
        del made[next(iter(made))]
    return prototype


def _links(sampling: Sampling, n_vocab: int, dry: Prototype | None) -> Iterator[ctypes.c_void_p]:
    if dry is not None:
        yield dry.clone()
    if sampling.temperature == 0.0:
        yield lib.llama_sampler_init_greedy()
        return
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
