"""What a model takes of the memory of each device, planned or loaded."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from runnerd_protocol.prompts import Message, RequestId

DeviceKind = Literal["cpu", "gpu", "integrated"]
KVType = Literal["f16", "q8_0", "q4_0"]


class Plan(Message, frozen=True, tag="plan"):
    """Ask for a `MemoryReport`: of the model as it is configured, or with other sizes.

    Without any it tells of what is loaded, once it is. `n_gpu_layers` counts the output layer.
    """

    request_id: RequestId
    n_ctx: Annotated[int, Meta(ge=2, le=2**31 - 1)] | None = None
    n_slots: Annotated[int, Meta(ge=1, le=256)] | None = None
    kv_type: KVType | None = None
    n_gpu_layers: Annotated[int, Meta(ge=0, le=2**16)] | None = None


class LayerMemory(Struct, frozen=True, omit_defaults=True):
    """A layer's weights and its part of the KV cache; `device` is an id.

    `slides`: it has a sliding window, and so fewer cells. `shares_kv`: it reads another layer's.
    """

    device: str
    weight_bytes: int
    kv_bytes: int
    slides: bool = False
    shares_kv: bool = False


class DeviceMemory(Struct, frozen=True, omit_defaults=True):
    """What goes to a device, of what is free there before (which may be below zero).

    `id` is the PCI bus id where one is known. `host_bytes`, in main memory, are copies of
    weights in a layout of the CPU's own, adapters, the vocabulary, samplers, and all else that is
    no tensor of the file. `reserve_bytes` are to stay free.
    """

    id: str
    name: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int
    description: str = ""
    library: str = ""
    weight_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0
    projector_bytes: int = 0
    host_bytes: int = 0
    reserve_bytes: int = 0


class FailedAllocation(Struct, frozen=True, omit_defaults=True):
    """The allocation that failed: for what, where, and how much; 0: it is not known."""

    what: str
    device: str = ""
    n_bytes: int = 0


class Memory(Struct, frozen=True, omit_defaults=True):
    """What a model takes, by layer and by device.

    `layers` are the blocks, then the output layer. `input_bytes` are weights of no layer (token
    embeddings), in main memory always. `cache_bytes` may come on top of it in main memory while
    the daemon works: checkpoints, and images. `n_ctx_fits` is the largest context per slot that
    fits, 0 if none does; `n_gpu_layers_fit` is how many layers fit on devices. `is_measured`:
    the buffers are sized by the engine, else they are estimates. `failed` is there if the load
    ran out of memory.
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
    layers: list[LayerMemory]
    devices: list[DeviceMemory]
    fits: bool
    cache_bytes: int = 0
    n_ctx_fits: int = 0
    n_gpu_layers_fit: int = 0
    is_measured: bool = False
    failed: FailedAllocation | None = None


class MemoryReport(Message, frozen=True, tag="memory_report"):
    """The answer to `Plan`."""

    request_id: RequestId
    memory: Memory
