"""LoRA adapters made by hand for SmolLM2: random changes of what attention asks for."""

import struct
from pathlib import Path

import numpy as np

from tests.engine.gguf_files import F32, F64, GGUFFile, array, entry, number, tensor, text
from tests.engine.tiny_models import Weighted, real

N_EMBD, N_LAYERS, RANK = 576, 30, 4
N_EMBD_V = 192  # what attention keeps of a row, in values
I32_TENSOR = 26  # a ggml_type
ALPHA = "adapter.lora.alpha"


def lora(
    folder: Path,
    *,
    seed: int = 1,
    arch: str = "llama",
    kind: str = "lora",
    n_embd: int = N_EMBD,
    alpha: bytes | None = None,
) -> str:
    """Write an adapter; return its path."""
    weights = Weighted(seed)
    for layer in range(N_LAYERS):
        block = f"blk.{layer}.attn_q.weight"
        weights.random(f"{block}.lora_a", n_embd, RANK)
        weights.random(f"{block}.lora_b", RANK, n_embd)
    entries = _entries(arch, kind, real(ALPHA, 2.0 * RANK) if alpha is None else alpha)
    return weights.save(folder / f"lora-{seed}-{arch}-{kind}-{n_embd}.gguf", entries)


def lora_of(folder: Path, weight: str, a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Write an adapter of one weight, its tensors of these extents; return its path."""
    weights = Weighted(1)
    weights.random(f"{weight}.lora_a", *a)
    weights.random(f"{weight}.lora_b", *b)
    return weights.save(folder / "lora.gguf", _entries("llama", "lora", real(ALPHA, 8.0)))


def lora_of_nan(folder: Path) -> str:
    """Write an adapter that makes a NaN of every value that attention keeps; return its path."""
    weights = Weighted(1)
    for layer in range(N_LAYERS):
        block = f"blk.{layer}.attn_v.weight"
        weights.add(f"{block}.lora_a", (N_EMBD, RANK), np.full((RANK, N_EMBD), np.nan))
        weights.add(f"{block}.lora_b", (RANK, N_EMBD_V), np.full((N_EMBD_V, RANK), np.nan))
    return weights.save(folder / "nan.gguf", _entries("llama", "lora", real(ALPHA, 8.0)))


def lora_of_integers(folder: Path) -> str:
    """Write an adapter the tensors of which are int32; return its path."""
    weight, n_bytes = "blk.0.attn_q.weight", 4 * N_EMBD * RANK
    pair = (
        tensor(f"{weight}.lora_a", (N_EMBD, RANK), I32_TENSOR),
        tensor(f"{weight}.lora_b", (RANK, N_EMBD), I32_TENSOR, n_bytes),
    )
    file = GGUFFile(_entries("llama", "lora", real(ALPHA, 8.0)), pair, bytes(2 * n_bytes))
    path = folder / "lora.gguf"
    path.write_bytes(file.to_bytes())
    return str(path)


def bad_alphas() -> tuple[bytes, ...]:
    """Return scales of types over which llama.cpp ends the process."""
    return (
        number(ALPHA, 8),
        entry(ALPHA, F64, struct.pack("<d", 8.0)),
        array(ALPHA, F32, 1, struct.pack("<f", 8.0)),
        array(ALPHA, F32, 2000, bytes(8000)),
    )


def _entries(arch: str, kind: str, alpha: bytes) -> tuple[bytes, ...]:
    return (
        text("general.type", "adapter"),
        text("general.architecture", arch),
        text("adapter.type", kind),
        alpha,
    )
