"""A plan as a command line: the configuration as its options, and the sizes a client asks for."""

from dataclasses import replace

from runnerd.config import Config
from runnerd.engine.base import EngineConfig
from runnerd.errors import InvalidRequest
from runnerd_protocol.messages import Plan

WORDS = {
    "n_ctx": ("context", "ctx"),
    "kv_type": ("kv-type", "flash", "K and V", "heads"),
    "n_gpu_layers": ("layers", "device"),
    "n_slots": ("slots",),
}
"""What an error says that is about a field, the field that it is most surely about first."""


def overrides_of(asked: Plan) -> dict[str, int | str]:
    """Return the sizes that a client has named, by their fields."""
    named = {field: getattr(asked, field) for field in WORDS}
    return {field: value for field, value in named.items() if value is not None}


def planned_config(config: EngineConfig, asked: Plan) -> EngineConfig:
    """Return the configuration with the sizes that a client has named in it.

    The cells of an over-committed cache are no more than its requests could use.

    Raises:
        InvalidRequest: a size contradicts the rest of the configuration.
    """
    n_slots = asked.n_slots or config.n_slots
    n_ctx = asked.n_ctx or config.n_ctx
    if n_slots > config.n_batch:
        raise InvalidRequest("n_slots", n_slots, f"at most {config.n_batch}, the rows of a step")
    if asked.n_ctx and config.n_cells and asked.n_ctx > config.n_cells:
        raise InvalidRequest(
            "n_ctx", asked.n_ctx, f"at most {config.n_cells}, the cells of the whole cache"
        )
    kv_type = asked.kv_type or config.kv_type
    if kv_type != "f16" and config.flash_attn == "off":
        raise InvalidRequest("kv_type", kv_type, "f16: flash attention is off")
    n_layers = asked.n_gpu_layers
    return replace(
        config,
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=min(config.n_cells, n_slots * n_ctx) if n_ctx else config.n_cells,
        kv_type=kv_type,
        n_gpu_layers=config.n_gpu_layers if n_layers is None else n_layers,
    )


def field_at_fault(overrides: dict[str, int | str], words: str) -> str:
    """Return the field that an error is about, of those that a client has named."""
    about = [
        field
        for field, signs in WORDS.items()
        if field in overrides and any(sign in words for sign in signs)
    ]
    return (about or list(overrides))[0]


def plan_arguments(daemon: Config) -> list[str]:
    """Return the arguments of `runnerd` that print the plan of a daemon's model, as JSON."""
    config, mib = daemon.engine, 2**20
    options = {
        "engine": config.engine,
        "slots": config.n_slots,
        "ctx": config.n_ctx,
        "ctx-total": config.n_cells,
        "batch": config.n_batch,
        "ubatch": config.n_ubatch,
        "threads": config.n_threads,
        "kv": config.kv,
        "flash-attn": config.flash_attn,
        "kv-type": config.kv_type,
        "embed-max": config.n_embed,
        "mmproj": config.mmproj,
        "image-rows": config.n_image_rows,
        "gpu-layers": "auto" if config.n_gpu_layers is None else config.n_gpu_layers,
        "devices": "all" if config.devices is None else ",".join(config.devices) or "none",
        "tensor-split": ",".join(map(repr, config.tensor_split)) or "auto",
        "reserve-mib": -(-config.reserve_bytes // mib),
        "checkpoint-mib": daemon.checkpoint_mib,
        "image-store-mib": -(-daemon.images.store_bytes // mib),
        "image-cache-mib": -(-daemon.images.cache_bytes // mib),
    }
    return [
        "plan",
        "--json",
        *(f"--{name}={value}" for name, value in options.items()),
        *(["--swa-full"] if config.swa_full else []),
        *(f"--lora={name}={path}" for name, path in config.adapters),
        "--",
        config.model,
    ]
