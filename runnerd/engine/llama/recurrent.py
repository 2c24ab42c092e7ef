"""What the memory of a model takes at least, some layers of which keep a state instead of cells.

Source: llama-hparams.cpp, n_embd_r and n_embd_s; llama-model.cpp, which layers are recurrent.
"""

from collections.abc import Sequence

from runnerd.engine.base import KVType
from runnerd.engine.llama.gguf import KV_BLOCK, KV_BLOCK_BYTES, MAX_ARRAY, GGUFHeader

F32_BYTES = 4  # states are not quantised


def recurrent_bytes(header: GGUFHeader, kv_type: KVType, n_cells: int, n_slots: int) -> int | None:
    """Return the size of cells and states at least; None where the metadata does not tell."""
    n_layers = header.number("block_count")
    if n_layers is None:
        return None
    heads = _heads(header, n_layers)
    if heads is None:
        return None
    sizes = [min(header.head_sizes(part), default=0) for part in ("key", "value")]
    if header.number("attention.key_length_mla"):  # latent attention may keep keys alone
        sizes[1] = 0
    per_cell = sum(heads) * sum(sizes) * KV_BLOCK_BYTES[kv_type] // KV_BLOCK
    return per_cell * n_cells + sum(state_bytes_per_layer(header, n_slots, heads))


def heads_per_layer(header: GGUFHeader) -> tuple[int, ...] | None:
    """Return how many heads each layer keeps in cells; None where the metadata does not tell."""
    n_layers = header.number("block_count")
    if n_layers is None or n_layers > MAX_ARRAY:
        return None
    if header.keeps_states:
        return _heads(header, n_layers)
    key = f"{header.architecture}.attention.head_count_kv"
    match header.metadata.get(key, header.number("attention.head_count")):
        case tuple(per_layer) if len(per_layer) >= n_layers:
            return tuple(map(int, per_layer[:n_layers]))
        case int(every_layer):
            return (every_layer,) * n_layers
        case _:
            return None


def state_bytes_per_layer(
    header: GGUFHeader, n_slots: int, heads: Sequence[int]
) -> tuple[int, ...]:
    """Return what states of slots each layer keeps at least, of those with no heads."""
    if not header.keeps_states:
        return (0,) * len(heads)
    n_bytes = _state_values(header) * F32_BYTES * n_slots
    return tuple(
        n_bytes * (n == 0 and not _is_feed_forward(header, layer)) for layer, n in enumerate(heads)
    )


def _heads(header: GGUFHeader, n_layers: int) -> tuple[int, ...] | None:
    """Return how many heads each layer keeps in cells, of a model some layers of which do not."""
    every = header.number("full_attention_interval")
    match header.metadata.get(f"{header.architecture}.attention.head_count_kv", 0):
        case tuple(per_layer):
            return tuple(map(int, per_layer[:n_layers]))
        case int(n_heads) if every:
            return tuple(n_heads * ((layer + 1) % every == 0) for layer in range(n_layers))
        case 0:
            return (0,) * n_layers
        case _:
            return None


def _is_feed_forward(header: GGUFHeader, layer: int) -> bool:
    """Whether a layer that keeps no cells may be one that keeps nothing at all."""
    match header.metadata.get(f"{header.architecture}.feed_forward_length"):
        case tuple(per_layer):
            return bool(per_layer[layer]) if layer < len(per_layer) else True
        case _:
            return False


def _state_values(header: GGUFHeader) -> int:
    """Return how many numbers a layer keeps of a slot at least."""

    def size(name: str) -> int:
        return header.number(name) or 0

    n_embd, n_inner, n_state = map(size, ("embedding_length", "ssm.inner_size", "ssm.state_size"))
    n_rows = n_inner + 2 * size("ssm.group_count") * n_state
    convolved = max(0, size("ssm.conv_kernel") - 1) * n_rows
    short = max(0, size("shortconv.l_cache") - 1) * n_embd
    return convolved + n_inner * n_state + short + n_embd * size("wkv.head_size")
