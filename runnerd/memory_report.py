"""What a model takes of memory, as clients and parents are told it."""

from msgspec import convert

from runnerd.config import Config
from runnerd.engine.memory_plan import DeviceMemory, MemoryPlan
from runnerd_protocol import messages as wire


def memory_of(plan: MemoryPlan, config: Config) -> wire.Memory:
    """Return a plan, and what the daemon may take on top of it, as a message says them."""
    return wire.Memory(
        model=plan.model,
        architecture=plan.architecture,
        n_ctx=plan.n_ctx,
        n_slots=plan.n_slots,
        n_cells=plan.n_cells,
        n_batch=plan.n_batch,
        n_ubatch=plan.n_ubatch,
        kv=plan.kv,
        kv_type=plan.kv_type,
        n_layers=plan.n_layers,
        n_gpu_layers=plan.n_gpu_layers,
        input_bytes=plan.input_bytes,
        layers=convert(plan.layers, list[wire.LayerMemory], from_attributes=True),
        devices=[_device_of(each) for each in plan.devices],
        fits=plan.fits,
        cache_bytes=_cache_bytes(plan, config),
        n_ctx_fits=plan.n_ctx_fits,
        n_gpu_layers_fit=plan.n_gpu_layers_fit,
        is_measured=plan.is_measured,
        failed=convert(plan.failed, wire.FailedAllocation | None, from_attributes=True),
    )


def _cache_bytes(plan: MemoryPlan, config: Config) -> int:
    """Return what a daemon of this configuration may take on top of a plan."""
    n_bytes = config.checkpoint_mib * 2**20 if plan.has_checkpoints else 0
    if config.engine.mmproj or any(each.projector_bytes for each in plan.devices):
        images = config.images
        n_bytes += images.store_bytes + images.pixel_bytes + images.cache_bytes
    return n_bytes


def _device_of(memory: DeviceMemory) -> wire.DeviceMemory:
    device = memory.device
    return wire.DeviceMemory(
        id=device.id,
        name=device.name,
        kind=device.kind,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        description=device.description,
        library=device.library,
        weight_bytes=memory.weight_bytes,
        kv_bytes=memory.kv_bytes,
        compute_bytes=memory.compute_bytes,
        output_bytes=memory.output_bytes,
        projector_bytes=memory.projector_bytes,
        host_bytes=memory.host_bytes,
        reserve_bytes=memory.reserve_bytes,
    )
