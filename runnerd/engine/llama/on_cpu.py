"""Settings that suit a model in main memory, where the options leave them open."""

from dataclasses import replace

from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.host_memory import attention_work_bytes, headroom_bytes
from runnerd.engine.llama.kv_type import choose_kv_type, may_have_flash_attention
from runnerd.engine.llama.processor import INTEL
from runnerd.engine.llama.shape import ContextShape, kv_bytes, plan_shape

# Scores of 4 bytes and weights of 2 by head, row and cell: 32 heads, 512 rows and 5461 cells.
MOST_ATTENTION_BYTES = 512 << 20
QUERY_TILE = 64  # rows; flash attention takes fewer one by one
AMPLE = 3  # times that is to be free for it: what else a pass takes is not known here


def settled_on_cpu(
    config: EngineConfig, header: GGUFHeader, free_bytes: int, vendor: str
) -> EngineConfig:
    """Return the configuration without "auto" flash attention, if something else is faster.

    `free_bytes` of main memory are free: where they are few, flash attention saves some.
    `vendor` is the processor's (`cpu_vendor`).

    Raises:
        ConfigError: a size is beyond the model's or llama.cpp's bounds.
    """
    config = replace(config, kv_type=choose_kv_type(config, header, on_cpu=True))
    is_better_off = vendor == INTEL and _is_better_off(config, header, free_bytes)
    return replace(config, flash_attn="off") if is_better_off else config


def prompt_tile(config: EngineConfig, shape: ContextShape, architecture: str) -> int:
    """Return how many rows of a slot flash attention takes together, not one by one; 1: never.

    It does so in a pass that has room for them, with a cache that is not quantised.
    Source: ggml-cpu/ops.cpp, ggml_compute_forward_flash_attn_ext_f16; GGML_FA_TILE_Q.
    """
    has_tiles = may_have_flash_attention(config, architecture) and shape.kv_type == "f16"
    return QUERY_TILE if has_tiles and shape.n_ubatch >= QUERY_TILE else 1


def _is_better_off(config: EngineConfig, header: GGUFHeader, free_bytes: int) -> bool:
    """Whether flash attention is to be decided here, costs an Intel's time, and saves no memory.

    llama.cpp's is slow there for less than 64 rows of a sequence: beside 2000 cells a row takes
    39 ms of SmolLM2, and 7 without it. Those are all rows of steps in which somebody generates.
    On an AMD EPYC they take 5.5 and 3.4, and streams alone take 2 to 16 % less time with it,
    so that others than Intel's keep what llama.cpp chooses (loadtest/README.md has the figures).
    Where most layers look back on a window only there is nothing to gain: Gemma 3 270M takes
    3.0 ms either way, and generates with 8 sequences a tenth faster with it.
    """
    if config.flash_attn != "auto" or config.kv_type != "f16":
        return False
    shape = plan_shape(config, header)
    if header.mostly_slides and 0 < (header.number("attention.sliding_window") or 0) < shape.n_ctx:
        return False
    n_bytes = 3 * attention_work_bytes(header, shape)
    taken = header.size_bytes + (kv_bytes(shape, header) or 0) + headroom_bytes(shape.n_threads)
    return n_bytes <= MOST_ATTENTION_BYTES and free_bytes - taken >= AMPLE * n_bytes
