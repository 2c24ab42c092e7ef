"""What a process takes of main memory beside tensors: the vocabulary, samplers, and the like."""

import ctypes
import os
from pathlib import Path

from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.shape import ContextShape

F16_BYTES = 2
# Threads, the graph's metadata, rows handed to llama.cpp, and what a first pass leaves behind:
# measured as 5 to 6 MB for models of 30 and of 18 layers.
WORK_BYTES = 5_500_000
# A candidate of 12 bytes, and a logit, for every token of the vocabulary: see `Samplers`.
SAMPLER_BYTES = 16
# llama.cpp ends the process where it finds no room for a graph's metadata, 42 MiB at least
# (GGML_ASSERT in ggml_init), and OpenMP where it finds none for a thread's stack. Little of either
# is ever touched, but a load that has no such room is refused.
GRAPH_BYTES = 64 << 20
STACK_BYTES = 10 << 20
CELL_BYTES = 52  # llama.cpp keeps a position and a set of sequences of each cell: llama-kv-cells.h


class _Mallinfo2(ctypes.Structure):
    """glibc's mallinfo2, of mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


_libc = ctypes.CDLL(None)
_mallinfo2 = getattr(_libc, "mallinfo2", None)  # glibc from 2.33 on
if _mallinfo2 is not None:
    _mallinfo2.restype = _Mallinfo2


def heap_bytes() -> int:
    """Return what is allocated at this moment, whether or not it was ever touched.

    Without glibc: the anonymous memory of the process, in which what was freed may be again.
    """
    if _mallinfo2 is not None:
        found = _mallinfo2()
        return int(found.uordblks) + int(found.hblkhd)
    status = Path("/proc/self/statm").read_text().split()
    return (int(status[1]) - int(status[2])) * os.sysconf("SC_PAGE_SIZE")


def attention_work_bytes(header: GGUFHeader, shape: ContextShape) -> int:
    """Return what the CPU keeps at most of a pass's attention, where that is no flash attention.

    It multiplies values of the cache with weights of as many bits, to which it converts all of a
    layer at once. Source: ggml-cpu.c, ggml_graph_plan.
    """
    heads = header.metadata.get(f"{header.architecture}.attention.head_count")
    n_heads = max(map(int, heads), default=0) if isinstance(heads, tuple) else heads
    if not isinstance(n_heads, int):
        return 0
    return n_heads * shape.n_ubatch * (shape.n_ctx_total // shape.n_streams) * F16_BYTES


def headroom_bytes(n_threads: int) -> int:
    """Return what a load wants to be free beside what it takes, or refuses to begin."""
    return GRAPH_BYTES + n_threads * STACK_BYTES


def host_bytes(vocabulary_bytes: int, n_vocab: int, n_cells: int) -> int:
    """Return what is taken beside tensors, given the growth of the heap by a model's metadata."""
    return vocabulary_bytes + n_vocab * SAMPLER_BYTES + n_cells * CELL_BYTES + WORK_BYTES
