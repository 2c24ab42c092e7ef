"""Tries placements until one loads: what was really allocated beats what was planned."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from runnerd.engine.base import EngineConfig
from runnerd.engine.device import CPU_ID, Device
from runnerd.engine.memory_plan import MemoryPlan
from runnerd.engine.placement import BACK_OFF, Placement, PlacementRequest, back_off
from runnerd.errors import OutOfMemory

T = TypeVar("T")

_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


def request_of(
    plan: MemoryPlan, config: EngineConfig, *, output_copy_bytes: int = 0
) -> PlacementRequest:
    """Return what is to be placed of a planned model.

    `output_copy_bytes` is what the output layer takes on a device on top of what it takes in main
    memory: embeddings that it shares are copied there.
    """
    sizes = [layer.weight_bytes + layer.kv_bytes for layer in plan.layers]
    sizes[-1] += output_copy_bytes
    return PlacementRequest(
        layers=tuple(sizes),
        compute_bytes=max((each.compute_bytes for each in plan.devices), default=0),
        reserve_bytes=config.reserve_bytes,
        projector_bytes=sum(each.projector_bytes for each in plan.devices),
        n_gpu_layers=config.n_gpu_layers,
        tensor_split=config.tensor_split,
    )


def load_with_back_off(
    load_once: Callable[[Placement], T],
    request: PlacementRequest,
    devices: Sequence[Device],
    log: FilteringBoundLogger,
) -> T:
    """Load with the placement that promises most, and with less on devices as long as that fails.

    `load_once` leaves nothing behind where it raises.

    Raises:
        OutOfMemory: main memory is short, or what was asked for of devices does not load.
    """
    failed: Placement | None = None
    for n_failures in range(BACK_OFF):
        placement = back_off(request, devices, n_failures)
        if placement == failed:
            continue
        if not placement.devices:
            break
        try:
            return load_once(placement)
        except OutOfMemory as err:
            if request.is_forced:
                raise _forced_error(request, placement, err) from err
            if _is_of_main_memory(err):
                raise
            log.warning(
                "placement.failed",
                n_gpu_layers=placement.n_gpu_layers,
                devices=[device.id for device in placement.devices],
                n_layers=list(placement.n_layers),
                error=str(err),
            )
            failed, request = placement, _learned(request, err)
    return load_once(Placement((), ()))


def offloaded(lines: Iterable[str]) -> tuple[int, int] | None:
    """Return how many layers llama.cpp has put on devices, and of how many; None: no word of it.

    The output layer counts as one. Source: llama-model.cpp, load_tensors.
    """
    found = [match for line in lines if (match := _OFFLOADED.search(line))]
    return (int(found[-1][1]), int(found[-1][2])) if found else None


def _learned(request: PlacementRequest, err: OutOfMemory) -> PlacementRequest:
    """Return the request with the compute memory that the failed load is known to have needed."""
    if not isinstance(err.plan, MemoryPlan):
        return request
    on_devices = (each for each in err.plan.devices if each.device.id != CPU_ID)
    known = max((each.compute_bytes for each in on_devices), default=0)
    return replace(request, compute_bytes=max(request.compute_bytes, known))


def _is_of_main_memory(err: OutOfMemory) -> bool:
    """Whether less on devices would only make it worse."""
    plan = err.plan
    return isinstance(plan, MemoryPlan) and plan.failed is not None and plan.failed.device == CPU_ID


def _forced_error(request: PlacementRequest, placement: Placement, err: OutOfMemory) -> OutOfMemory:
    asked = []
    if request.n_gpu_layers is not None:
        asked.append(f"gpu-layers {request.n_gpu_layers}")
    if request.tensor_split:
        asked.append(f"tensor-split {','.join(f'{each:g}' for each in request.tensor_split)}")
    where = ", ".join(
        f"{n} on {device.id}"
        for device, n in zip(placement.devices, placement.n_layers, strict=True)
    )
    forced = OutOfMemory(f"{' with '.join(asked)} does not load ({where}): {err}")
    forced.plan = err.plan
    return forced
