"""LoRA adapters made by hand for SmolLM2: random changes of what attention asks for."""

from pathlib import Path

from tests.engine.gguf_files import number, text
from tests.engine.tiny_models import Weighted, real

N_EMBD, N_LAYERS, RANK = 576, 30, 4


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
    entries = (
        text("general.type", "adapter"),
        text("general.architecture", arch),
        text("adapter.type", kind),
        real("adapter.lora.alpha", 2.0 * RANK) if alpha is None else alpha,
    )
    return weights.save(folder / f"lora-{seed}-{arch}-{kind}-{n_embd}.gguf", entries)


def integer_alpha() -> bytes:
    """Return a scale of a type that llama.cpp does not take."""
    return number("adapter.lora.alpha", 8)
