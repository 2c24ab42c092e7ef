"""What a model takes of memory, made up: for tests of how it is shown."""

from msgspec.structs import replace

from runnerd_protocol.messages import DeviceMemory, LayerMemory, Memory

MIB = 2**20


def some_device(device_id: str = "cpu", *, free_mib: int = 4096) -> DeviceMemory:
    """Return a device that 300 MiB go to, and on which 512 are to stay free."""
    return DeviceMemory(
        device_id,
        device_id.upper(),
        "cpu" if device_id == "cpu" else "gpu",
        total_bytes=8192 * MIB,
        free_bytes=free_mib * MIB,
        weight_bytes=90 * MIB,
        kv_bytes=180 * MIB,
        compute_bytes=20 * MIB,
        output_bytes=MIB,
        host_bytes=9 * MIB,
        reserve_bytes=512 * MIB,
    )


def some_layer(*, slides: bool = False, device: str = "cpu") -> LayerMemory:
    """Return a layer of 3 MiB and 6 MiB, or 2 MiB with a sliding window."""
    return LayerMemory(device, 3 * MIB, 2 * MIB if slides else 6 * MIB, slides=slides)


def some_memory(*devices: DeviceMemory, **fields: object) -> Memory:
    """Return the memory of a model of three layers, which fits; fields replace its own."""
    memory = Memory(
        model="tiny",
        architecture="llama",
        n_ctx=2048,
        n_slots=4,
        n_cells=8192,
        n_batch=2048,
        n_ubatch=512,
        kv="split",
        kv_type="f16",
        n_layers=3,
        n_gpu_layers=0,
        input_bytes=5 * MIB,
        layers=[some_layer(), some_layer(), some_layer(), LayerMemory("cpu", 7 * MIB, 0)],
        devices=list(devices) or [some_device()],
        fits=True,
    )
    return replace(memory, **fields)
