"""What each layer of a model takes: its weights as they lie in the file, and its KV cache.

Source: llama-hparams.cpp, n_embd_k_gqa and n_embd_v_gqa; llama-kv-cache.cpp.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from runnerd.engine.base import KVType
from runnerd.engine.llama.gguf import KV_BLOCK, KV_BLOCK_BYTES, GGUFHeader
from runnerd.engine.llama.gguf_tensors import TensorEntry
from runnerd.engine.llama.recurrent import F32_BYTES, heads_per_layer, state_bytes_per_layer
from runnerd.engine.llama.shape import ContextShape

EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
_BLOCK = re.compile(r"blk\.(\d+)\.")
_OF_OUTPUT = ("output", "dec.output", "cls")  # how names of what follows the last block begin


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of tensors: of no layer, of each block, and of what follows the last one."""

    input_bytes: int
    blocks: tuple[int, ...]
    output_bytes: int


def weights_of(header: GGUFHeader, tensors: Mapping[str, TensorEntry]) -> Weights:
    """Sort a file's tensors by layer; together they are all of them."""
    blocks = [0] * (header.number("block_count") or 0)
    input_bytes = output_bytes = 0
    for name, tensor in tensors.items():
        block = _BLOCK.match(name)
        if block and int(block[1]) < len(blocks):
            blocks[int(block[1])] += tensor.n_bytes
        elif name.startswith(_OF_OUTPUT):
            output_bytes += tensor.n_bytes
        else:
            input_bytes += tensor.n_bytes
    return Weights(input_bytes, tuple(blocks), output_bytes)


def n_vocab_of(header: GGUFHeader) -> int:
    """Return how many tokens the model has embeddings for."""
    embeddings = header.tensors.get(EMBEDDINGS)
    return embeddings.extent(1) if embeddings else 0


def output_copy_bytes(tensors: Mapping[str, TensorEntry]) -> int:
    """Return what a device's copy of the embeddings takes, where they are the output layer, too.

    In main memory llama.cpp reads the output layer's weights from the embeddings themselves.
    """
    if OUTPUT in tensors or EMBEDDINGS not in tensors:
        return 0
    return tensors[EMBEDDINGS].n_bytes


def kv_of(
    header: GGUFHeader, shape: ContextShape, sliding: Collection[int]
) -> tuple[int, ...] | None:
    """Return what each block keeps of all slots; None where the metadata does not tell.

    Layers of `sliding` have cells for their window alone. States of slots are at least so large.
    """
    heads = heads_per_layer(header)
    if heads is None:
        return None
    n_own = len(heads) - (header.number("attention.shared_kv_layers") or 0)
    states = state_bytes_per_layer(header, shape.n_slots, heads)
    n_swa = header.number("attention.sliding_window") or 0
    n_sliding = shape.n_sliding(n_swa) if n_swa else shape.n_ctx_total
    sizes = {slides: _cell_values(header, slides=slides) for slides in (False, True)}
    return tuple(
        _stored(n_heads * sizes[layer in sliding], shape.kv_type)
        * (n_sliding if layer in sliding else shape.n_ctx_total)
        * (layer < n_own)
        + states[layer]
        for layer, n_heads in enumerate(heads)
    )


def shift_bytes(header: GGUFHeader, shape: ContextShape) -> int:
    """Return what a context shift computes with, where keys are quantised; f16 ones stay in place.

    All keys of a layer become float32, and as many again when they are turned.
    Source: llama-kv-cache.cpp, build_rope_shift.
    """
    n_swa = header.number("attention.sliding_window") or 0
    if shape.kv_type == "f16" or header.keeps_states or 0 < n_swa < shape.n_ctx:
        return 0  # the latter cannot be shifted
    n_values = max(heads_per_layer(header) or (), default=0) * _head_values(header, "key")
    return 2 * n_values * shape.n_ctx_total * F32_BYTES


def _cell_values(header: GGUFHeader, *, slides: bool) -> int:
    """Return how many values a head keeps in a cell: of its key, and of its value."""
    n_values = _head_values(header, "key", slides=slides)
    if header.number("attention.key_length_mla"):  # latent attention reads values out of keys
        return n_values
    return n_values + _head_values(header, "value", slides=slides)


def _head_values(header: GGUFHeader, part: str, *, slides: bool = False) -> int:
    n_embd, n_heads = header.number("embedding_length"), header.number("attention.head_count")
    default = n_embd // n_heads if n_embd and n_heads else 0
    name = f"attention.{part}_length"
    own = header.number(f"{name}_swa") if slides else None
    return own or header.number(name) or default


def _stored(n_values: int, kv_type: KVType) -> int:
    return n_values * KV_BLOCK_BYTES[kv_type] // KV_BLOCK
