"""Plans of memory, of any kind and of one that is easy to read."""

from hypothesis import strategies as st

from runnerd.engine.device import Device
from runnerd.engine.memory_plan import DeviceMemory, FailedAllocation, LayerMemory, MemoryPlan

n_bytes = st.integers(0, 2**45)
counts = st.integers(0, 2**31 - 1)
texts = st.text(max_size=20)

devices = st.builds(
    Device,
    id=texts,
    name=texts,
    kind=st.sampled_from(["cpu", "gpu", "integrated"]),
    total_bytes=n_bytes,
    free_bytes=st.integers(-(2**45), 2**45),
    library=texts,
    description=texts,
)
plans = st.builds(
    MemoryPlan,
    model=texts,
    architecture=texts,
    n_ctx=counts,
    n_slots=counts,
    n_cells=counts,
    n_batch=counts,
    n_ubatch=counts,
    kv=st.sampled_from(["split", "unified"]),
    kv_type=st.sampled_from(["f16", "q8_0", "q4_0"]),
    n_layers=counts,
    n_gpu_layers=counts,
    input_bytes=n_bytes,
    layers=st.lists(
        st.builds(
            LayerMemory,
            device=texts,
            weight_bytes=n_bytes,
            kv_bytes=n_bytes,
            slides=st.booleans(),
            shares_kv=st.booleans(),
        ),
        max_size=5,
    ).map(tuple),
    devices=st.lists(
        st.builds(
            DeviceMemory,
            device=devices,
            weight_bytes=n_bytes,
            kv_bytes=n_bytes,
            compute_bytes=n_bytes,
            output_bytes=n_bytes,
            projector_bytes=n_bytes,
            host_bytes=n_bytes,
            reserve_bytes=n_bytes,
        ),
        max_size=3,
    ).map(tuple),
    n_ctx_fits=counts,
    n_gpu_layers_fit=counts,
    is_measured=st.booleans(),
    has_checkpoints=st.booleans(),
    failed=st.none() | st.builds(FailedAllocation, what=texts, device=texts, n_bytes=n_bytes),
)


def small_plan(*, projector_bytes: int = 0, has_checkpoints: bool = False) -> MemoryPlan:
    """Return the plan of a model of one layer, in main memory."""
    return MemoryPlan(
        model="small.gguf",
        architecture="llama",
        n_ctx=64,
        n_slots=2,
        n_cells=128,
        n_batch=32,
        n_ubatch=32,
        kv="split",
        kv_type="f16",
        n_layers=1,
        n_gpu_layers=0,
        input_bytes=1,
        layers=(LayerMemory("cpu", 2, 3), LayerMemory("cpu", 4, 0)),
        devices=(
            DeviceMemory(
                Device("cpu", "CPU", "cpu", 1000, 900),
                weight_bytes=7,
                kv_bytes=3,
                projector_bytes=projector_bytes,
            ),
        ),
        has_checkpoints=has_checkpoints,
    )
