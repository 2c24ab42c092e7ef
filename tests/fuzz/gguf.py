"""The header of a model file, which an operator may have from anywhere."""

import os
from contextlib import suppress
from random import Random
from typing import get_args

from runnerd.engine.base import KVType
from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.mmproj import check_mmproj
from runnerd.engine.llama.recurrent import heads_per_layer, recurrent_bytes
from runnerd.errors import BadModel, OutOfMemory

NAME = "fuzzed.gguf"
EDGES = (0, 1, 8, 9, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def run(data: bytes) -> None:
    """Read the bytes as a model and as a projector: what is neither is a `BadModel`."""
    fd = os.memfd_create(NAME)
    try:
        os.write(fd, data)
        path = f"/proc/self/fd/{fd}"
        with suppress(BadModel):
            use(read_gguf(path))
        with suppress(BadModel, OutOfMemory):
            check_mmproj(path)
    finally:
        os.close(fd)


def use(header: GGUFHeader) -> None:
    """Ask a header for all that a load asks it."""
    for kv_type in get_args(KVType):
        assert (header.kv_bytes_per_input(kv_type) or 0) == sum(
            header.kv_bytes_per_layer(kv_type) or ()
        )
        recurrent_bytes(header, kv_type, n_cells=64, n_slots=2)
    heads_per_layer(header)
    for layer in range(header.number("block_count") or 0):
        header.may_slide(layer)
    for tensor in header.tensors.values():
        assert tensor.n_bytes <= header.size_bytes
    assert len(header.tensors) <= header.n_tensors


def cross(data: bytes, other: bytes, max_bytes: int, seed: int) -> bytes:
    """Return a file that begins as one and ends as another."""
    draw = Random(seed)
    tail = other[draw.randrange(len(other) + 1) :]
    return (data[: draw.randrange(len(data) + 1)] + tail)[:max_bytes]


def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
    """Change a number, put bytes in or take some out; lengths are little-endian."""
    draw = Random(seed)
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        size = draw.choice((1, 4, 8))
        new = draw.choice((*EDGES, draw.randrange(2**64), draw.randrange(64)))
        gone = size if draw.random() < 0.8 else draw.randrange(2 * size)
        changed[at : at + gone] = (new % 2 ** (8 * size)).to_bytes(size, "little")
        if draw.random() < 0.1:
            del changed[draw.randrange(len(changed)) :]
        if draw.random() < 0.1:
            start = draw.randrange(len(changed) + 1)
            changed += changed[start : start + 64]
    return bytes(changed[:max_bytes])
