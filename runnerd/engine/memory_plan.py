"""What a model takes of the memory of each device, as values: planned, or as it was loaded."""

from dataclasses import dataclass, replace
from typing import Literal

from runnerd.engine.base import KVType
from runnerd.engine.device import Device


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """A layer's weights and its part of the KV cache; `device` is an id.

    `slides`: it has a sliding window, and so fewer cells. `shares_kv`: it reads another layer's.
    """

    device: str
    weight_bytes: int
    kv_bytes: int
    slides: bool = False
    shares_kv: bool = False


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What goes to a device. `reserve_bytes` of what is free there are to stay free.

    In main memory that is what a load refuses to begin without, not the reserve of the
    configuration: a machine or a container is often as large as its model just needs, and pages
    of weights, which are mapped, are given back before anything is swapped or killed.
    `weight_bytes` are those of the file. Copies of weights in a layout of the CPU's own are, like
    adapters, vocabulary and samplers, in `host_bytes`.
    """

    device: Device
    weight_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0
    projector_bytes: int = 0
    host_bytes: int = 0
    reserve_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """All that goes to the device."""
        return (
            self.weight_bytes
            + self.kv_bytes
            + self.compute_bytes
            + self.output_bytes
            + self.projector_bytes
            + self.host_bytes
        )

    @property
    def fits(self) -> bool:
        """Whether it has room for all that."""
        return self.needed_bytes <= self.device.free_bytes - self.reserve_bytes


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """The allocation that failed: for what, on which device's id, how much; 0: not known."""

    what: str
    device: str = ""
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a model takes, by layer and by device; most fields are as in the wire's `Memory`.

    `layers` are the blocks, then the output layer; `devices` begin with main memory. The sum over
    devices of weights is that over layers and `input_bytes`, and of the KV cache that over layers.
    `has_checkpoints`: to go back in a slot takes one, for which there is to be memory, too.
    """

    model: str
    architecture: str
    n_ctx: int
    n_slots: int
    n_cells: int
    n_batch: int
    n_ubatch: int
    kv: Literal["split", "unified"]
    kv_type: KVType
    n_layers: int
    n_gpu_layers: int
    input_bytes: int
    layers: tuple[LayerMemory, ...]
    devices: tuple[DeviceMemory, ...]
    n_ctx_fits: int = 0
    n_gpu_layers_fit: int = 0
    is_measured: bool = False
    has_checkpoints: bool = False
    failed: FailedAllocation | None = None

    @property
    def needed_bytes(self) -> int:
        """All that is needed, over all devices."""
        return sum(each.needed_bytes for each in self.devices)

    @property
    def fits(self) -> bool:
        """Whether every device has room for its part."""
        return all(each.fits for each in self.devices)

    def with_failure(self, failed: FailedAllocation) -> "MemoryPlan":
        """Return the plan of a load that has failed."""
        return replace(self, failed=failed)
