"""Puts a plan together from what a file, its metadata and llama.cpp's log say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runnerd.engine.base import EngineConfig
from runnerd.engine.device import CPU_ID, Device
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.host_memory import headroom_bytes
from runnerd.engine.llama.plan_kv import kv_per_layer, sharing_layers
from runnerd.engine.llama.plan_layers import Weights, output_copy_bytes, shift_bytes, weights_of
from runnerd.engine.llama.probe_log import LoadSizes
from runnerd.engine.llama.shape import ContextShape
from runnerd.engine.memory_plan import DeviceMemory, LayerMemory, MemoryPlan
from runnerd.engine.placement import Placement


@dataclass(frozen=True, slots=True)
class Extras:
    """What llama.cpp's model and context do not tell of; `main` is main memory before the load."""

    main: Device
    host_bytes: int = 0
    projector_bytes: int = 0


def make_plan(
    config: EngineConfig,
    header: GGUFHeader,
    shape: ContextShape,
    sizes: LoadSizes,
    placement: Placement,
    extras: Extras,
) -> MemoryPlan:
    """Put together what the file, its metadata and llama.cpp say."""
    main = extras.main
    names = {each.name: each for each in placement.devices}
    weights = weights_of(header, header.tensors)
    sliding = _sliding(header, sizes, len(weights.blocks))
    layers = _layers(header, shape, weights, sizes, names, sliding)
    shifted = shift_bytes(header, shape)  # in the same buffer as a pass
    devices = []
    for device in (main, *placement.devices):
        own = [layer for layer in layers if layer.device == device.id]
        is_main = device is main
        memory = DeviceMemory(
            device,
            weight_bytes=sum(layer.weight_bytes for layer in own)
            + (weights.input_bytes if is_main else 0),
            kv_bytes=sum(layer.kv_bytes for layer in own),
            compute_bytes=max(_of_device(sizes.compute, device, names), shifted if own else 0),
            output_bytes=_of_device(sizes.output, device, names),
            projector_bytes=extras.projector_bytes if device.id == layers[-1].device else 0,
            host_bytes=extras.host_bytes if is_main else 0,
            reserve_bytes=headroom_bytes(shape.n_threads) if is_main else config.reserve_bytes,
        )
        devices.append(memory)
    return MemoryPlan(
        model=Path(config.model).stem,
        architecture=header.architecture,
        n_ctx=shape.n_ctx,
        n_slots=shape.n_slots,
        n_cells=shape.n_cells,
        n_batch=shape.n_batch,
        n_ubatch=shape.n_ubatch,
        kv="unified" if shape.unified else "split",
        kv_type=shape.kv_type,
        n_layers=len(weights.blocks),
        n_gpu_layers=sum(
            layer.device in {each.id for each in placement.devices} for layer in layers
        ),
        input_bytes=weights.input_bytes,
        layers=layers,
        devices=tuple(devices),
        has_checkpoints=_has_checkpoints(header, shape, sizes, sliding),
    )


def _of_device(buffers: Mapping[str, int], device: Device, names: Mapping[str, Device]) -> int:
    """Sum buffers on a device; all that are on none of the others are in main memory."""
    if device.name in names:
        return buffers.get(device.name, 0)
    return sum(n_bytes for name, n_bytes in buffers.items() if name not in names)


def _sliding(header: GGUFHeader, sizes: LoadSizes, n_blocks: int) -> set[int]:
    if sizes.devices:
        return sizes.sliding
    if not header.number("attention.sliding_window"):
        return set()
    return {layer for layer in range(n_blocks) if header.may_slide(layer)}


def _has_checkpoints(
    header: GGUFHeader, shape: ContextShape, sizes: LoadSizes, sliding: set[int]
) -> bool:
    n_swa = header.number("attention.sliding_window") or 0
    forgets = bool(sliding) and shape.window(n_swa) > 0
    return forgets or any(cache.has_states for cache in sizes.caches)


def _layers(
    header: GGUFHeader,
    shape: ContextShape,
    weights: Weights,
    sizes: LoadSizes,
    names: Mapping[str, Device],
    sliding: set[int],
) -> tuple[LayerMemory, ...]:
    n_blocks = len(weights.blocks)
    ids = [
        names[name].id if (name := sizes.devices.get(layer, "")) in names else CPU_ID
        for layer in range(n_blocks + 1)
    ]
    n_bytes = kv_per_layer(header, shape, sizes, sliding, n_blocks)
    sharing = sharing_layers(header, n_blocks)
    blocks = [
        LayerMemory(
            device=ids[layer],
            weight_bytes=weights.blocks[layer],
            kv_bytes=n_bytes[layer],
            slides=layer in sliding,
            shares_kv=layer in sharing,
        )
        for layer in range(n_blocks)
    ]
    on_device = ids[-1] != CPU_ID
    copied = output_copy_bytes(header.tensors) if on_device else 0
    return (*blocks, LayerMemory(ids[-1], weights.output_bytes + copied, 0))
