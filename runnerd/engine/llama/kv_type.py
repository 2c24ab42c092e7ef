"""Which type the KV cache is stored as: decided after flash attention, which some types need."""

import structlog

from runnerd.engine.base import EngineConfig, KVType
from runnerd.engine.llama.gguf import KV_BLOCK, GGUFHeader
from runnerd.errors import ConfigError

log = structlog.get_logger()

# llama.cpp turns flash attention off for these. Source: llama-context.cpp, llama_init_from_model.
WITHOUT_FLASH_ATTENTION = ("grok",)


def choose_kv_type(config: EngineConfig, header: GGUFHeader, *, on_cpu: bool) -> KVType:
    """Return the type asked for, or f16 where flash attention is not sure to be on.

    Raises:
        ConfigError: the model's heads cannot be stored so.
    """
    kv_type = config.kv_type
    if kv_type == "f16":
        return kv_type
    if not _has_flash_attention(config, header, on_cpu=on_cpu):
        log.warning(
            "kv.type_replaced",
            kv_type=kv_type,
            used="f16",
            flash_attn=config.flash_attn,
            architecture=header.architecture,
        )
        return "f16"
    for part in ("key", "value"):
        for size in header.head_sizes(part):
            if size % KV_BLOCK:
                raise ConfigError(
                    f"kv-type {kv_type} has blocks of {KV_BLOCK} values:"
                    f" the {part}s of this model's heads have {size}"
                )
    return kv_type


def may_have_flash_attention(config: EngineConfig, architecture: str) -> bool:
    """Whether llama.cpp may run flash attention: it is not off, and the model has it."""
    return config.flash_attn != "off" and architecture not in WITHOUT_FLASH_ATTENTION


def _has_flash_attention(config: EngineConfig, header: GGUFHeader, *, on_cpu: bool) -> bool:
    """Whether flash attention will be on for sure.

    "auto" is on wherever a device can do it, and the CPU can. But told of a quantised cache,
    llama.cpp reads "auto" as "on", and runs on the CPU what a device cannot.
    """
    is_sure = config.flash_attn == "on" or on_cpu
    return is_sure and may_have_flash_attention(config, header.architecture)
