"""A placement that does not load is followed by one with less on devices."""

from collections.abc import Callable

import pytest
import structlog
from structlog.testing import capture_logs

from runnerd.engine.base import EngineConfig
from runnerd.engine.device import CPU_ID, Device
from runnerd.engine.llama.offload import load_with_back_off, offloaded, request_of
from runnerd.engine.memory_plan import DeviceMemory, FailedAllocation, LayerMemory, MemoryPlan
from runnerd.engine.placement import MAIN_MEMORY, Placement, PlacementRequest, place
from runnerd.errors import LoadCancelled, OutOfMemory

CPU = Device(CPU_ID, "CPU", "cpu", 1000, 1000)
GPU = Device("0000:01:00.0", "CUDA0", "gpu", 100, 100, "CUDA")
REQUEST = PlacementRequest((10,) * 10, 0, 0)

# In the words of llama.cpp, of a load onto two devices: put together, for none is here.
LOG = """\
load_tensors: offloading output layer to GPU
load_tensors: offloading 31 repeating layers to GPU
load_tensors: offloaded 32/33 layers to GPU
load_tensors:        CUDA0 model buffer size =  5434.38 MiB
load_tensors:        CUDA1 model buffer size = 13989.53 MiB
load_tensors:   CPU_Mapped model buffer size =  1640.62 MiB
""".splitlines()


def plan_of(
    *devices: DeviceMemory, failed_on: str = "", layers: tuple[LayerMemory, ...] = ()
) -> MemoryPlan:
    failed = FailedAllocation("compute", failed_on) if failed_on else None
    return MemoryPlan(
        model="toy",
        architecture="toy",
        n_ctx=8,
        n_slots=1,
        n_cells=8,
        n_batch=8,
        n_ubatch=8,
        kv="split",
        kv_type="f16",
        n_layers=len(layers),
        n_gpu_layers=0,
        input_bytes=0,
        layers=layers,
        devices=devices,
        failed=failed,
    )


def short_of_memory(plan: MemoryPlan | None = None) -> OutOfMemory:
    error = OutOfMemory("cudaMalloc failed")
    error.plan = plan
    return error


def attempts(
    request: PlacementRequest,
    devices: list[Device],
    holds: int = 0,
    error: Callable[[], Exception] = short_of_memory,
) -> list[int]:
    """Load what holds so many layers on devices at most; return the layers of each attempt."""
    counts: list[int] = []

    def load_once(placement: Placement) -> Placement:
        counts.append(placement.n_gpu_layers)
        if placement.n_gpu_layers > holds:
            raise error()
        return placement

    loaded = load_with_back_off(load_once, request, devices, structlog.get_logger())
    assert loaded.n_gpu_layers == counts[-1]
    return counts


def test_without_devices_there_is_a_single_try() -> None:
    assert attempts(REQUEST, []) == [0]


def test_what_loads_at_once_is_loaded_once() -> None:
    assert attempts(REQUEST, [GPU], holds=10) == [10]


def test_each_try_has_a_layer_less_for_each_tenth_until_one_loads() -> None:
    assert attempts(REQUEST, [GPU], holds=7) == [10, 9, 8, 7]


def test_in_the_end_all_is_in_main_memory() -> None:
    assert attempts(REQUEST, [GPU]) == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_a_placement_that_failed_is_not_tried_again() -> None:
    assert attempts(PlacementRequest((50, 50), 0, 0), [GPU]) == [2, 1, 0]


def test_each_failure_is_logged_with_what_was_where() -> None:
    with capture_logs() as lines:
        attempts(REQUEST, [GPU], holds=9)
    (line,) = lines
    assert (line["log_level"], line["event"]) == ("warning", "placement.failed")
    assert (line["n_gpu_layers"], line["devices"]) == (10, [GPU.id])
    assert line["error"] == "cudaMalloc failed"


def test_compute_memory_that_turned_out_larger_is_reckoned_with() -> None:
    plan = plan_of(DeviceMemory(CPU, compute_bytes=999), DeviceMemory(GPU, compute_bytes=40))
    assert attempts(REQUEST, [GPU], holds=5, error=lambda: short_of_memory(plan)) == [10, 5]


def test_when_main_memory_is_short_less_on_devices_is_not_tried() -> None:
    plan = plan_of(DeviceMemory(CPU), failed_on=CPU_ID)
    with pytest.raises(OutOfMemory, match="cudaMalloc"):
        attempts(REQUEST, [GPU], error=lambda: short_of_memory(plan))


def test_when_not_even_main_memory_is_enough_its_error_is_raised() -> None:
    with pytest.raises(OutOfMemory, match="cudaMalloc"):
        attempts(REQUEST, [GPU], holds=-1)


def test_other_errors_end_the_load_at_once() -> None:
    with pytest.raises(LoadCancelled):
        attempts(REQUEST, [GPU], error=lambda: LoadCancelled("told to stop"))


@pytest.mark.parametrize(
    ("n_gpu_layers", "tensor_split", "words"),
    [
        (7, (), r"gpu-layers 7 does not load \(7 on 0000:01:00.0\): cudaMalloc"),
        (None, (1.0,), r"tensor-split 1 does not load"),
        (7, (2.5,), r"gpu-layers 7 with tensor-split 2.5 does not load"),
    ],
)
def test_what_was_asked_for_and_does_not_load_is_an_error_that_names_it(
    n_gpu_layers: int | None, tensor_split: tuple[float, ...], words: str
) -> None:
    request = PlacementRequest((10,) * 10, 0, 0, 0, n_gpu_layers, tensor_split)
    plan = plan_of(DeviceMemory(GPU))
    with pytest.raises(OutOfMemory, match=words) as caught:
        attempts(request, [GPU], error=lambda: short_of_memory(plan))
    assert caught.value.plan is plan


def test_no_layers_on_devices_asked_for_is_a_single_try() -> None:
    assert attempts(PlacementRequest((10,) * 10, 0, 0, n_gpu_layers=0), [GPU]) == [0]


def test_a_plan_tells_what_is_to_be_placed() -> None:
    layers = (LayerMemory(CPU_ID, 10, 3), LayerMemory(CPU_ID, 20, 4), LayerMemory(CPU_ID, 5, 0))
    plan = plan_of(DeviceMemory(CPU, compute_bytes=9, projector_bytes=8), layers=layers)
    config = EngineConfig("", n_gpu_layers=2, tensor_split=(1.0,), reserve_bytes=6)
    request = request_of(plan, config, output_copy_bytes=100)
    assert request == PlacementRequest((13, 24, 105), 9, 6, 8, 2, (1.0,))


def test_what_is_placed_on_devices_and_what_is_left_is_all_there_is() -> None:
    layers = tuple(LayerMemory(CPU_ID, 10 + n, n) for n in range(9))
    request = request_of(
        plan_of(DeviceMemory(CPU), layers=layers), EngineConfig("", reserve_bytes=0)
    )
    n_placed = place(request, [GPU]).n_gpu_layers
    assert 0 < n_placed < 9
    kept, moved = request.layers[:-n_placed], request.layers[-n_placed:]
    assert sum(kept) + sum(moved) == sum(each.weight_bytes + each.kv_bytes for each in layers)


def test_the_layers_really_offloaded_are_read_from_the_log() -> None:
    assert offloaded(LOG) == (32, 33)


@pytest.mark.parametrize("lines", [[], ["load_tensors: offloading output layer to GPU"]])
def test_a_log_without_a_word_of_it_tells_nothing(lines: list[str]) -> None:
    assert offloaded(lines) is None


def test_the_last_word_of_a_log_holds() -> None:
    assert offloaded([*LOG, "load_tensors: offloaded 0/33 layers to GPU"]) == (0, 33)


def test_main_memory_alone_has_no_devices() -> None:
    assert (MAIN_MEMORY.devices, MAIN_MEMORY.n_gpu_layers) == ((), 0)
