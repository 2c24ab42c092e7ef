"""Models of a few thousand random weights, as GGUF files: kinds that no package brings along."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.engine.gguf_files import (
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    GGUFFile,
    array,
    entry,
    number,
    string,
    tensor,
)
from tests.engine.gguf_files import text as word

N_EMBD, N_STATE, N_CONV, N_LAYERS, N_FF = 32, 8, 4, 3, 48
NAMES = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581")
KINDS = (2, 3, 3, *((6,) * 256), 1)  # llama_token_type: unknown, control, bytes, normal
FIRST_BYTE = 3  # the token of a zero byte
N_VOCAB = len(NAMES)
IMAGE_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")

Weights = npt.NDArray[np.float32]


class Weighted:
    """Collects tensors with their data, in llama.cpp's order of extents."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._tensors: list[bytes] = []
        self._data: list[bytes] = []
        self._n_bytes = 0

    def random(self, name: str, *extents: int, scale: float = 0.3) -> None:
        """Add random values around 0."""
        self.add(name, extents, self._random.normal(0.0, scale, extents[::-1]))

    def ones(self, name: str, *extents: int, sign: float = 1.0) -> None:
        """Add values that are all 1, or all -1."""
        self.add(name, extents, np.full(extents[::-1], sign))

    def add(self, name: str, extents: tuple[int, ...], values: npt.NDArray[np.float64]) -> None:
        """Add a float32 tensor."""
        data = values.astype("<f4").tobytes()
        self._tensors.append(tensor(name, extents, offset=self._n_bytes))
        self._data.append(data + bytes(-len(data) % 32))
        self._n_bytes += len(self._data[-1])

    def save(self, path: Path, entries: tuple[bytes, ...]) -> str:
        """Write the file; return its path."""
        file = GGUFFile(entries, tuple(self._tensors), b"".join(self._data))
        path.write_bytes(file.to_bytes())
        return str(path)


def real(key: str, value: float) -> bytes:
    """Return an entry with a float32."""
    return entry(key, F32, struct.pack("<f", value))


def mamba(folder: Path) -> str:
    """Write a model all layers of which are recurrent."""
    arch, n_inner, n_rank = "mamba", 2 * N_EMBD, 2
    weights = Weighted(1)
    weights.random("token_embd.weight", N_EMBD, N_VOCAB, scale=1.0)
    weights.ones("output_norm.weight", N_EMBD)
    for layer in range(N_LAYERS):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm.weight", N_EMBD)
        weights.random(f"{block}.ssm_in.weight", N_EMBD, 2 * n_inner)
        weights.random(f"{block}.ssm_conv1d.weight", N_CONV, n_inner)
        weights.random(f"{block}.ssm_conv1d.bias", n_inner)
        weights.random(f"{block}.ssm_x.weight", n_inner, n_rank + 2 * N_STATE)
        weights.random(f"{block}.ssm_dt.weight", n_rank, n_inner)
        weights.random(f"{block}.ssm_dt.bias", n_inner)
        weights.ones(f"{block}.ssm_a", N_STATE, n_inner, sign=-1.0)
        weights.ones(f"{block}.ssm_d", n_inner)
        weights.random(f"{block}.ssm_out.weight", n_inner, N_EMBD)
    entries = (
        number(f"{arch}.ssm.conv_kernel", N_CONV),
        number(f"{arch}.ssm.inner_size", n_inner),
        number(f"{arch}.ssm.state_size", N_STATE),
        number(f"{arch}.ssm.time_step_rank", n_rank),
        number(f"{arch}.feed_forward_length", 0),
        number(f"{arch}.attention.head_count", 0),
    )
    return weights.save(folder / "mamba.gguf", (*_common(arch), *entries))


def lfm2(folder: Path, n_attending: int = 1) -> str:
    """Write a model with short convolutions in its layers, but full attention in some, from 1."""
    arch, n_heads = "lfm2", 2
    weights = Weighted(2)
    weights.random("token_embd.weight", N_EMBD, N_VOCAB, scale=1.0)
    weights.ones("token_embd_norm.weight", N_EMBD)
    for layer in range(N_LAYERS):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm.weight", N_EMBD)
        weights.ones(f"{block}.ffn_norm.weight", N_EMBD)
        weights.random(f"{block}.ffn_gate.weight", N_EMBD, N_FF)
        weights.random(f"{block}.ffn_up.weight", N_EMBD, N_FF)
        weights.random(f"{block}.ffn_down.weight", N_FF, N_EMBD)
        if 1 <= layer <= n_attending:
            weights.ones(f"{block}.attn_q_norm.weight", N_EMBD // n_heads)
            weights.ones(f"{block}.attn_k_norm.weight", N_EMBD // n_heads)
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                weights.random(f"{block}.{name}.weight", N_EMBD, N_EMBD)
        else:
            weights.random(f"{block}.shortconv.conv.weight", N_CONV, N_EMBD)
            weights.random(f"{block}.shortconv.in_proj.weight", N_EMBD, 3 * N_EMBD)
            weights.random(f"{block}.shortconv.out_proj.weight", N_EMBD, N_EMBD)
    heads = [n_heads if 1 <= layer <= n_attending else 0 for layer in range(N_LAYERS)]
    kv_heads = struct.pack(f"<{N_LAYERS}I", *heads)
    entries = (
        number(f"{arch}.shortconv.l_cache", N_CONV),
        number(f"{arch}.feed_forward_length", N_FF),
        number(f"{arch}.attention.head_count", n_heads),
        array(f"{arch}.attention.head_count_kv", U32, N_LAYERS, kv_heads),
        real(f"{arch}.rope.freq_base", 10000.0),
    )
    return weights.save(folder / f"lfm2-{n_attending}.gguf", (*_common(arch), *entries))


def qwen2vl(folder: Path) -> str:
    """Write a model with M-RoPE, which knows the marks around an image."""
    arch, n_heads = "qwen2vl", 2
    weights = Weighted(3)
    weights.random("token_embd.weight", N_EMBD, N_VOCAB + len(IMAGE_MARKS), scale=1.0)
    weights.ones("output_norm.weight", N_EMBD)
    for layer in range(N_LAYERS):
        _add_transformer(weights, f"blk.{layer}")
        for name in ("attn_q", "attn_k", "attn_v"):
            weights.random(f"blk.{layer}.{name}.bias", N_EMBD)
    entries = (
        number(f"{arch}.feed_forward_length", N_FF),
        number(f"{arch}.attention.head_count", n_heads),
        real(f"{arch}.rope.freq_base", 10000.0),
        # Of the 8 pairs of a head of 16 values: time, y, x.
        array(f"{arch}.rope.dimension_sections", I32, 4, struct.pack("<4i", 2, 3, 3, 0)),
    )
    path = folder / "qwen2vl.gguf"
    return weights.save(path, (*_common(arch, IMAGE_MARKS), *entries))


def gemma3(path: Path, marks: Sequence[str], words: Sequence[str]) -> str:
    """Write a model without a sliding window that has these control tokens and words as well."""
    arch, n_heads = "gemma3", 2
    weights = Weighted(5)
    weights.random("token_embd.weight", N_EMBD, N_VOCAB + len(marks) + len(words), scale=0.3)
    weights.ones("output_norm.weight", N_EMBD)
    for layer in range(N_LAYERS):
        block = f"blk.{layer}"
        _add_transformer(weights, block)
        weights.ones(f"{block}.post_attention_norm.weight", N_EMBD)
        weights.ones(f"{block}.post_ffw_norm.weight", N_EMBD)
        weights.ones(f"{block}.attn_q_norm.weight", N_EMBD // n_heads)
        weights.ones(f"{block}.attn_k_norm.weight", N_EMBD // n_heads)
    entries = (
        number(f"{arch}.feed_forward_length", N_FF),
        number(f"{arch}.attention.head_count", n_heads),
        real(f"{arch}.rope.freq_base", 10000.0),
    )
    return weights.save(path, (*_common(arch, marks, words), *entries))


def _add_transformer(weights: Weighted, block: str) -> None:
    """Add what every layer with attention has."""
    weights.ones(f"{block}.attn_norm.weight", N_EMBD)
    weights.ones(f"{block}.ffn_norm.weight", N_EMBD)
    weights.random(f"{block}.ffn_gate.weight", N_EMBD, N_FF)
    weights.random(f"{block}.ffn_up.weight", N_EMBD, N_FF)
    weights.random(f"{block}.ffn_down.weight", N_FF, N_EMBD)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        weights.random(f"{block}.{name}.weight", N_EMBD, N_EMBD)


def _common(arch: str, marks: Sequence[str] = (), words: Sequence[str] = ()) -> tuple[bytes, ...]:
    names = (*NAMES, *marks, *words)
    n_vocab, normal, control = len(names), 1, 3
    scores = struct.pack(f"<{n_vocab}f", *([0.0] * n_vocab))
    more_kinds = (*([control] * len(marks)), *([normal] * len(words)))
    kinds = struct.pack(f"<{n_vocab}i", *KINDS, *more_kinds)
    return (
        word("general.architecture", arch),
        number(f"{arch}.context_length", 4096),
        number(f"{arch}.embedding_length", N_EMBD),
        number(f"{arch}.block_count", N_LAYERS),
        number(f"{arch}.vocab_size", n_vocab),
        real(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5),
        word("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", STRING, n_vocab, b"".join(map(string, names))),
        array("tokenizer.ggml.scores", F32, n_vocab, scores),
        array("tokenizer.ggml.token_type", I32, n_vocab, kinds),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        entry("tokenizer.ggml.add_space_prefix", BOOL, b"\0"),
    )
