"""What is to be placed of a real model, and the context that devices are good for.

No device is here, and none is touched: what is free of them is a value.
"""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

pytest.importorskip("llama_cpp")

from runnerd.engine.base import EngineConfig
from runnerd.engine.context_tiers import GIB
from runnerd.engine.device import Device
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.settle import load_on_devices, settle
from runnerd.engine.placement import MAIN_MEMORY, Placement, PlacementRequest, place
from runnerd.errors import ConfigError, OutOfMemory
from tests.engine.llama_builders import MODEL, llama_config

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]


def gpu(total: float, free: float) -> Device:
    return Device("0000:01:00.0", "CUDA0", "gpu", round(total * GIB), round(free * GIB), "CUDA")


def settled(*devices: Device, n_ctx: int = 0) -> tuple[int, PlacementRequest]:
    config = llama_config(n_ctx=n_ctx, n_slots=4)
    config, request = settle(config, read_gguf(config.model), devices)
    return config.n_ctx, request


def test_a_large_device_gets_the_whole_context_and_all_layers() -> None:
    device = gpu(24, 20)
    n_ctx, request = settled(device)
    header = read_gguf(llama_config().model)
    assert n_ctx == header.number("context_length") == 8192
    assert place(request, [device]).n_layers == (len(request.layers),)


def test_what_is_to_be_placed_is_all_weights_and_the_kv_cache() -> None:
    _, request = settled(gpu(24, 20), n_ctx=512)
    header = read_gguf(llama_config().model)
    kv_bytes = (header.kv_bytes_per_input() or 0) * 4 * 512
    weights = {name: tensor.n_bytes for name, tensor in header.tensors.items()}
    # Embeddings stay in main memory, and are copied for the output layer that shares them.
    assert sum(request.layers) == sum(weights.values()) + kv_bytes
    assert request.layers[-1] >= weights["token_embd.weight"]
    assert request.compute_bytes > 0


def test_a_default_context_is_lowered_to_what_fits_and_that_is_logged() -> None:
    device = gpu(24, 1.2)
    with capture_logs() as lines:
        n_ctx, request = settled(device)
    assert n_ctx == 4096
    assert place(request, [device]).n_gpu_layers == len(request.layers)
    assert [line["event"] for line in lines] == ["context.default_lowered"]


def test_a_context_that_was_asked_for_leaves_layers_in_main_memory_instead() -> None:
    device = gpu(24, 1.2)
    n_ctx, request = settled(device, n_ctx=8192)
    assert n_ctx == 8192
    assert 0 < place(request, [device]).n_gpu_layers < len(request.layers)


def loads_of(
    config: EngineConfig, *devices: Device, holds: int = 0
) -> list[tuple[EngineConfig, Placement]]:
    """Return with what loads are tried, where devices hold so many layers at most."""
    tried: list[tuple[EngineConfig, Placement]] = []

    def load_once(config: EngineConfig, placement: Placement) -> None:
        tried.append((config, placement))
        if placement.n_gpu_layers > holds:
            raise OutOfMemory("cudaMalloc failed")

    load_on_devices(config, read_gguf(config.model), devices, load_once)
    return tried


def test_without_devices_a_load_is_tried_once_as_it_was_asked_for() -> None:
    config = llama_config(kv_type="q8_0", n_ctx=0)
    assert loads_of(config) == [(config, MAIN_MEMORY)]


def test_layers_for_devices_that_are_not_there_are_warned_of() -> None:
    with capture_logs() as lines:
        ((_, placement),) = loads_of(replace(llama_config(), n_gpu_layers=7))
    assert placement == MAIN_MEMORY
    (line,) = lines
    assert (line["log_level"], line["event"]) == ("warning", "placement.no_devices")
    assert line["n_gpu_layers"] == 7


def test_shares_for_devices_that_are_not_there_are_an_error() -> None:
    with pytest.raises(ConfigError, match="tensor-split has 2 shares for no devices"):
        loads_of(replace(llama_config(), tensor_split=(1.0, 1.0)))


def test_a_quantised_cache_is_replaced_on_devices_where_flash_attention_is_not_sure() -> None:
    config = llama_config(kv_type="q8_0", flash_attn="auto")
    with capture_logs() as lines:
        ((used, placement),) = loads_of(config, gpu(24, 20), holds=99)
    assert placement.devices
    assert used.kv_type == "f16"
    assert [(line["event"], line["kv_type"], line["flash_attn"]) for line in lines] == [
        ("kv.type_replaced", "q8_0", "auto")
    ]


def test_a_quantised_cache_stays_on_devices_where_flash_attention_is_on() -> None:
    config = llama_config(kv_type="q8_0", flash_attn="on")
    ((used, _),) = loads_of(config, gpu(24, 20), holds=99)
    assert used.kv_type == "q8_0"


def test_what_ends_in_main_memory_has_the_settings_of_a_machine_without_devices() -> None:
    config = llama_config(kv_type="q8_0", flash_attn="auto", n_ctx=0)
    tried = loads_of(config, gpu(24, 20))
    assert tried[0][0].n_ctx == 8192
    assert tried[-1] == (config, MAIN_MEMORY)
