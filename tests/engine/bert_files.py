"""A BERT of any size as a GGUF file, and what it must answer, computed anew in numpy."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.engine.gguf_files import (
    F32,
    STRING,
    GGUFFile,
    array,
    entry,
    number,
    string,
    tensor,
    text,
)

Floats = NDArray[np.float32]

BOOL, I32 = 7, 5  # value types of GGUF
PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Bert:
    """Weights by their names in a GGUF file; a matrix has a line per output."""

    weights: Mapping[str, Floats]
    n_heads: int

    @property
    def n_layers(self) -> int:
        return sum(name.endswith("attn_q.weight") for name in self.weights)

    def rows(self, tokens: Sequence[int]) -> Floats:
        """Return what the last layer gives for each token."""
        w = self.weights
        x = w["token_embd.weight"][list(tokens)] + w["position_embd.weight"][: len(tokens)]
        x = self._norm(x + w["token_types.weight"][0], "token_embd_norm")
        for layer in range(self.n_layers):
            x = self._layer(x, f"blk.{layer}.")
        return x

    def _layer(self, x: Floats, name: str) -> Floats:
        q, k, v = (self._heads(self._linear(x, f"{name}attn_{each}")) for each in "qkv")
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = (shares / shares.sum(axis=-1, keepdims=True)) @ v
        seen = seen.transpose(1, 0, 2).reshape(x.shape)
        x = self._norm(x + self._linear(seen, f"{name}attn_output"), f"{name}attn_output_norm")
        wide = self._linear(x, f"{name}ffn_up")
        wide *= 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))).astype(np.float32)
        return self._norm(x + self._linear(wide, f"{name}ffn_down"), f"{name}layer_output_norm")

    def _heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), self.n_heads, -1).transpose(1, 0, 2)

    def _linear(self, x: Floats, name: str) -> Floats:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, x: Floats, name: str) -> Floats:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def random_bert(
    *, n_vocab: int, n_ctx: int = 64, n_embd: int = 32, n_layers: int = 2, n_heads: int = 2
) -> Bert:
    """Return a BERT of seeded random weights."""
    rng = np.random.default_rng(7)
    weights: dict[str, Floats] = {}

    def add(name: str, *extents: int, around: float = 0.0) -> None:
        weights[name] = (around + 0.3 * rng.standard_normal(extents)).astype(np.float32)

    def add_linear(name: str, n_out: int, n_in: int) -> None:
        add(f"{name}.weight", n_out, n_in)
        add(f"{name}.bias", n_out)

    def add_norm(name: str) -> None:
        add(f"{name}.weight", n_embd, around=1.0)
        add(f"{name}.bias", n_embd)

    add("token_embd.weight", n_vocab, n_embd)
    add("position_embd.weight", n_ctx, n_embd)
    add("token_types.weight", 2, n_embd)
    add_norm("token_embd_norm")
    for layer in range(n_layers):
        name = f"blk.{layer}."
        for each in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add_linear(name + each, n_embd, n_embd)
        add_linear(f"{name}ffn_up", 4 * n_embd, n_embd)
        add_linear(f"{name}ffn_down", n_embd, 4 * n_embd)
        add_norm(f"{name}attn_output_norm")
        add_norm(f"{name}layer_output_norm")
    return Bert(weights, n_heads)


def bert_file(bert: Bert, words: Sequence[str], pooling_type: int | None = 1) -> bytes:
    """Return a GGUF file; `words` come after the special tokens, a first letter marked by ▁."""
    w = bert.weights
    tokens = [*SPECIAL, *words]
    types = [3] * len(SPECIAL) + [1] * len(words)  # control tokens, normal ones
    n_embd = w["token_embd.weight"].shape[1]
    entries = [
        text("general.architecture", "bert"),
        number("bert.context_length", len(w["position_embd.weight"])),
        number("bert.embedding_length", n_embd),
        number("bert.feed_forward_length", w["blk.0.ffn_up.weight"].shape[0]),
        number("bert.block_count", bert.n_layers),
        number("bert.attention.head_count", bert.n_heads),
        entry("bert.attention.layer_norm_epsilon", F32, struct.pack("<f", EPSILON)),
        entry("bert.attention.causal", BOOL, b"\0"),
        text("tokenizer.ggml.model", "bert"),
        number("tokenizer.ggml.token_type_count", 2),
        array("tokenizer.ggml.tokens", STRING, len(tokens), b"".join(map(string, tokens))),
        array("tokenizer.ggml.token_type", I32, len(types), struct.pack(f"<{len(types)}i", *types)),
        number("tokenizer.ggml.bos_token_id", CLS),
        number("tokenizer.ggml.cls_token_id", CLS),
        number("tokenizer.ggml.seperator_token_id", SEP),  # so the format spells it
        number("tokenizer.ggml.unknown_token_id", UNK),
        number("tokenizer.ggml.padding_token_id", PAD),
        number("tokenizer.ggml.mask_token_id", MASK),
    ]
    if pooling_type is not None:
        entries.append(number("bert.pooling_type", pooling_type))
    infos: list[bytes] = []
    data = bytearray()
    for name, weights in w.items():
        infos.append(tensor(name, weights.shape[::-1], offset=len(data)))
        data += weights.astype("<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    return GGUFFile(tuple(entries), tuple(infos), bytes(data)).to_bytes()
