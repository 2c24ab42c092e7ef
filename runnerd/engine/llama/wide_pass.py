"""How much of a wide pass has to run until all of its memory has been used once."""

from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.probe_log import LoadSizes

SPARE = 0.25  # of a layer: embeddings come before the first one, and layers are not all as long


def share_with_all_kinds(header: GGUFHeader, sizes: LoadSizes) -> float:
    """Return the share of a pass's nodes after which each kind of layer has run.

    The graph's allocator gives one layer's memory to the next. Kinds differ in what they see,
    in what they keep, and in whether experts follow.
    """
    n_layers = header.number("block_count") or 0
    n_dense = header.number("leading_dense_block_count") or 0
    first: dict[tuple[object, ...], int] = {}
    for layer in range(n_layers):
        caches = tuple(layer in cache.layers for cache in sizes.caches)
        first.setdefault((layer in sizes.sliding, layer < n_dense, caches), layer)
    if not first:
        return 1.0
    n_needed = max(first.values()) + 1
    return min(1.0, (n_needed + SPARE) / n_layers)
