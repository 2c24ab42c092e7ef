"""What a load has to settle where there are devices: the context, and what is to be placed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from runnerd.engine.base import EngineConfig
from runnerd.engine.context_tiers import with_default_n_ctx
from runnerd.engine.device import Device
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.kv_type import choose_kv_type
from runnerd.engine.llama.offload import load_with_back_off, request_of
from runnerd.engine.llama.on_cpu import settled_on_cpu
from runnerd.engine.llama.plan_build import Extras, make_plan
from runnerd.engine.llama.plan_layers import output_copy_bytes
from runnerd.engine.llama.probe import probing
from runnerd.engine.llama.processor import cpu_vendor
from runnerd.engine.llama.shape import DEFAULT_N_CTX, plan_shape
from runnerd.engine.main_memory import main_memory
from runnerd.engine.memory import available_bytes
from runnerd.engine.placement import MAIN_MEMORY, Placement, PlacementRequest, place
from runnerd.errors import ConfigError

T = TypeVar("T")
log = structlog.get_logger()


def load_on_devices(
    config: EngineConfig,
    header: GGUFHeader,
    devices: Sequence[Device],
    load_once: Callable[[EngineConfig, Placement], T],
    projector_bytes: int = 0,
) -> T:
    """Load with as many layers on devices as load there, and with the settings that suit them.

    In main memory alone the settings are those of a machine without devices.

    Raises:
        ConfigError: a size is not possible.
        LoadError: it cannot be loaded.
    """

    def load_placed(placement: Placement) -> T:
        if placement.devices:
            return load_once(settled, placement)
        return load_once(settled_on_cpu(config, header, available_bytes(), cpu_vendor()), placement)

    if devices:
        kv_type = choose_kv_type(config, header, on_cpu=False)
        settled, request = settle(
            replace(config, kv_type=kv_type), header, devices, projector_bytes
        )
        return load_with_back_off(load_placed, request, devices, log)
    check_no_devices(config)
    return load_placed(MAIN_MEMORY)


def check_no_devices(config: EngineConfig) -> None:
    """Refuse, or warn of, what is asked for of devices where there are none.

    Raises:
        ConfigError: shares are given to them.
    """
    if config.tensor_split:
        raise ConfigError(f"tensor-split has {len(config.tensor_split)} shares for no devices")
    if config.n_gpu_layers:
        log.warning("placement.no_devices", n_gpu_layers=config.n_gpu_layers)


def settle(
    config: EngineConfig, header: GGUFHeader, devices: Sequence[Device], projector_bytes: int = 0
) -> tuple[EngineConfig, PlacementRequest]:
    """Return the configuration with a context, and the request for its placement.

    The type of the KV cache is settled already. Nothing is allocated, and no device touched.

    Raises:
        ConfigError: a size is beyond the model's or llama.cpp's bounds.
        LoadError: llama.cpp cannot run the file.
    """
    trained = header.number("context_length") or DEFAULT_N_CTX
    copied = output_copy_bytes(header.tensors)
    extras = Extras(main_memory(), 0, projector_bytes)
    with probing(config, header, MAIN_MEMORY) as probe:

        def request_for(config: EngineConfig) -> PlacementRequest:
            shape = plan_shape(config, header)
            sizes = probe.sizes(shape)
            plan = make_plan(config, header, shape, sizes, MAIN_MEMORY, extras)
            return request_of(plan, config, output_copy_bytes=copied)

        def fits(config: EngineConfig) -> bool:
            free_choice = replace(request_for(config), n_gpu_layers=None, tensor_split=())
            return place(free_choice, devices).n_gpu_layers == len(free_choice.layers)

        settled = with_default_n_ctx(config, trained, devices, fits)
        return settled, request_for(settled)
