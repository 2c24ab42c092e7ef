"""How large a context is where none was asked for: by the memory of the devices in use."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from runnerd.engine.base import EngineConfig
from runnerd.engine.device import Device

log = structlog.get_logger()

GIB = 1 << 30
# Devices with at least so much memory in all, and the positions of a slot there. What is sold as
# 24 or 48 GB has a little less than that, which its driver keeps.
TIERS = ((47 * GIB, 262144), (23 * GIB, 32768))
LEAST = 4096  # main memory is not the model's alone, and long contexts take the CPU minutes


def tier_of(devices: Sequence[Device]) -> int:
    """Return the positions of a slot that devices of such a size are good for."""
    total = sum(device.total_bytes for device in devices if device.kind == "gpu")
    return next((n_ctx for least, n_ctx in TIERS if total >= least), LEAST)


def with_default_n_ctx(
    config: EngineConfig,
    trained: int,
    devices: Sequence[Device],
    fits: Callable[[EngineConfig], bool],
) -> EngineConfig:
    """Return the configuration with a context: of the devices' tier, or what fits of it.

    `fits` says whether all layers find room on devices. What was asked for stays as it is.
    """
    if config.n_ctx:
        return config
    wanted = min(tier_of(devices), trained, config.n_cells or trained)
    n_ctx = wanted
    while n_ctx > LEAST and not fits(replace(config, n_ctx=n_ctx)):
        n_ctx = max(LEAST, n_ctx // 2)
    if n_ctx < wanted:
        log.info("context.default_lowered", n_ctx=n_ctx, n_ctx_tier=wanted, n_ctx_train=trained)
    return replace(config, n_ctx=n_ctx)
