"""The KV cache layer by layer: by the metadata, and put right by what llama.cpp says of it."""

from collections.abc import Collection

import structlog

from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.plan_layers import kv_of
from runnerd.engine.llama.probe_log import ROUNDING_BYTES, CacheSize, LoadSizes
from runnerd.engine.llama.shape import ContextShape

log = structlog.get_logger()


def kv_per_layer(
    header: GGUFHeader,
    shape: ContextShape,
    sizes: LoadSizes,
    sliding: Collection[int],
    n_blocks: int,
) -> list[int]:
    """Return what each block keeps: sums over the layers of a cache are what llama.cpp says."""
    planned = kv_of(header, shape, sliding) or (0,) * n_blocks
    is_whole = bool(sizes.compute)  # llama.cpp speaks of computing after the last cache
    cached = {layer for cache in sizes.caches for layer in cache.layers}
    found = [0 if is_whole or layer in cached else n_bytes for layer, n_bytes in enumerate(planned)]
    for cache in sizes.caches:
        layers = [layer for layer in cache.layers if layer < n_blocks]
        for layer, n_bytes in zip(
            layers, _shares(cache, [planned[layer] for layer in layers]), strict=True
        ):
            found[layer] += n_bytes
    return found


def sharing_layers(header: GGUFHeader, n_blocks: int) -> range:
    """Return the layers that read the cache of another one."""
    n_sharing = header.number("attention.shared_kv_layers") or 0
    return range(max(0, n_blocks - n_sharing), n_blocks)


def _shares(cache: CacheSize, planned: list[int]) -> list[int]:
    """Return the parts of a cache's layers, by what was planned of each."""
    n_planned = sum(planned)
    if abs(n_planned - cache.n_bytes) <= ROUNDING_BYTES or not planned:
        return planned
    if not cache.has_states:  # the metadata tells of states at least
        log.warning("plan.kv_differs", planned_bytes=n_planned, engine_bytes=cache.n_bytes)
    if not n_planned:
        planned, n_planned = [1] * len(planned), len(planned)
    shares = [cache.n_bytes * n_bytes // n_planned for n_bytes in planned]
    shares[-1] += cache.n_bytes - sum(shares)
    return shares
