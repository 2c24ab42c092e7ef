"""How a context is made: llama.cpp's settings for it, and the bounds that come of them."""

import ctypes

from runnerd.core.batch import Limits
from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.library import is_of_memory, lib, quiet_load, said_of_load
from runnerd.engine.llama.model import LlamaModel
from runnerd.engine.llama.on_cpu import prompt_tile
from runnerd.engine.llama.shape import ContextShape
from runnerd.errors import ConfigError, OutOfMemory

FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
KV_TYPES = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}


def context_params(shape: ContextShape, flash_attention: int) -> ctypes.Structure:
    """Return llama.cpp's settings for a context."""
    params: ctypes.Structure = lib.llama_context_default_params()
    params.n_ctx = shape.n_ctx_total
    params.n_batch = shape.n_batch
    params.n_ubatch = shape.n_ubatch
    params.n_seq_max = shape.n_slots
    # One row of logits per slot: the default reserves n_ubatch rows, 0.5 GB for a large vocabulary.
    params.n_outputs_max = shape.n_slots
    params.n_threads = params.n_threads_batch = shape.n_threads
    params.flash_attn_type = flash_attention
    params.type_k = params.type_v = KV_TYPES[shape.kv_type]
    params.kv_unified = shape.unified
    params.swa_full = shape.swa_full
    params.no_perf = True
    return params


def make_context(
    model: LlamaModel, shape: ContextShape, config: EngineConfig, kv_bytes: int | None
) -> tuple[int, list[str]]:
    """Return llama.cpp's context, and what was said of it.

    Raises:
        OutOfMemory, ConfigError: there is no memory for it; or the model does not allow it.
    """
    with quiet_load() as errors:
        handle: int | None = lib.llama_init_from_model(
            model.handle, context_params(shape, FLASH_ATTENTION[config.flash_attn])
        )
        said = said_of_load()
    if handle is not None:
        return handle, said
    words = "; ".join(errors)
    if not is_of_memory(words):
        raise ConfigError(f"llama.cpp makes no such context: {words}")
    size = "" if kv_bytes is None else f", {kv_bytes} bytes of KV cache"
    raise OutOfMemory(f"no context for {shape.n_slots} slots of {shape.n_ctx}{size}: {words}")


def limits_of(
    model: LlamaModel, shape: ContextShape, config: EngineConfig, handle: int, memory: int
) -> Limits:
    """Return the bounds of a context; `memory` is llama.cpp's handle of its cells."""
    can_rewind = not model.is_recurrent
    architecture = model.description.architecture
    window = shape.window(model.n_swa)
    # A shift leaves holes, and what is put there makes sliding layers forget out of turn.
    slides = 0 < model.n_swa < shape.n_ctx
    return Limits(
        n_slots=shape.n_slots,
        n_ctx=shape.n_ctx,
        n_cells=shape.n_cells,
        n_batch=lib.llama_n_batch(handle),
        n_ubatch=lib.llama_n_ubatch(handle),
        can_shift=can_rewind and not slides and lib.llama_memory_can_shift(memory),
        is_unified=shape.unified,
        window=window,
        can_rewind=can_rewind,
        has_attention=not lib.llama_model_is_recurrent(model.handle),
        n_tile=1 if model.placement.devices else prompt_tile(config, shape, architecture),
    )
