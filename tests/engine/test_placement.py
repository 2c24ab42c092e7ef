"""Which layers go to which device, case by case."""

from dataclasses import replace

import pytest

from runnerd.engine.device import Device, DeviceKind
from runnerd.engine.placement import (
    BACK_OFF,
    MAIN_MEMORY,
    Placement,
    PlacementRequest,
    back_off,
    place,
)
from runnerd.errors import ConfigError

CPU = Device("cpu", "CPU", "cpu", 1000, 1000)


def gpu(free: int, device_id: str = "a", library: str = "CUDA", kind: DeviceKind = "gpu") -> Device:
    return Device(device_id, device_id.upper(), kind, max(free, 0), free, library)


def request(
    layers: tuple[int, ...] = (10,) * 4,
    *,
    n_gpu_layers: int | None = None,
    tensor_split: tuple[float, ...] = (),
    projector: int = 0,
    compute: int = 0,
    reserve: int = 0,
) -> PlacementRequest:
    return PlacementRequest(layers, compute, reserve, projector, n_gpu_layers, tensor_split)


def shown(placement: Placement) -> dict[str, int]:
    """Return the layers of each device, the one with the output layer last."""
    return {device.id: n for device, n in zip(placement.devices, placement.n_layers, strict=True)}


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [
        pytest.param(request(), [], {}, id="no devices"),
        pytest.param(request(n_gpu_layers=2), [], {}, id="no devices, forced"),
        pytest.param(request(), [CPU], {}, id="main memory is not placed on"),
        pytest.param(request(()), [gpu(99)], {}, id="no layers"),
        pytest.param(request(), [gpu(40)], {"a": 4}, id="all fit"),
        pytest.param(request(), [gpu(39)], {"a": 3}, id="one layer too many"),
        pytest.param(request(), [gpu(9)], {}, id="not even one fits"),
        pytest.param(request((1, 1, 1, 10)), [gpu(9)], {}, id="the output layer comes first"),
        pytest.param(request((9, 1, 9, 9)), [gpu(27)], {"a": 3}, id="from the last backwards"),
        pytest.param(request(), [gpu(0)], {}, id="nothing free"),
        pytest.param(request(), [gpu(-50)], {}, id="less than nothing free"),
        pytest.param(request(reserve=60), [gpu(50)], {}, id="less free than is reserved"),
        pytest.param(request(reserve=5), [gpu(44)], {"a": 3}, id="reserve"),
        pytest.param(request(compute=5), [gpu(44)], {"a": 3}, id="compute"),
        pytest.param(request(projector=10), [gpu(40)], {"a": 3}, id="projector"),
        pytest.param(request(projector=40), [gpu(45)], {}, id="projector without output layer"),
        pytest.param(request((0, 0)), [gpu(0)], {}, id="layers of no size need room to compute"),
        pytest.param(request(), [gpu(40), gpu(99, "b")], {"b": 4}, id="one device if all fits"),
        pytest.param(request(), [gpu(30), gpu(30, "b")], {"b": 2, "a": 2}, id="evenly spread"),
        pytest.param(request(), [gpu(30), gpu(10, "b")], {"b": 1, "a": 3}, id="two just hold it"),
        pytest.param(
            request((10,) * 9),
            [gpu(60), gpu(30, "b")],
            {"b": 3, "a": 6},
            id="in proportion to what is free",
        ),
        pytest.param(
            request((10,) * 6), [gpu(30), gpu(12, "b")], {"b": 1, "a": 3}, id="two, and some left"
        ),
        pytest.param(
            request(compute=5), [gpu(44), gpu(14, "b")], {"a": 3}, id="a device of no use is left"
        ),
        pytest.param(
            request(projector=20),
            [gpu(25), gpu(35, "b")],
            {"a": 2, "b": 1},
            id="the largest gets the projector",
        ),
        pytest.param(
            request((10,) * 6),
            [gpu(25), gpu(25, "b"), gpu(25, "c")],
            {"c": 2, "b": 2, "a": 2},
            id="three devices",
        ),
        pytest.param(
            request(),
            [gpu(50, "i", kind="integrated"), gpu(40)],
            {"a": 4},
            id="dedicated before integrated",
        ),
        pytest.param(
            request(),
            [gpu(90, "i", kind="integrated"), gpu(25)],
            {"i": 2, "a": 2},
            id="integrated takes the rest",
        ),
        pytest.param(
            request((10,) * 6),
            [gpu(25), gpu(30, "i", kind="integrated"), gpu(30, "j", kind="integrated")],
            {"j": 2, "i": 2, "a": 2},
            id="the rest is spread over the integrated",
        ),
        pytest.param(request(), [gpu(40, "i", kind="integrated")], {"i": 4}, id="integrated alone"),
        pytest.param(
            request(),
            [gpu(25), gpu(35, "v", "Vulkan")],
            {"v": 3},
            id="libraries are not mixed, the better one wins",
        ),
        pytest.param(
            request(),
            [gpu(25), gpu(25, "b"), gpu(35, "v", "Vulkan")],
            {"b": 2, "a": 2},
            id="two of one library hold more",
        ),
        pytest.param(
            request(),
            [gpu(40, "i", "Vulkan", "integrated"), gpu(40)],
            {"a": 4},
            id="of two libraries the one with a dedicated device",
        ),
        pytest.param(
            request(),
            [gpu(25), gpu(25, "b"), gpu(40, "v", "Vulkan")],
            {"v": 4},
            id="of two libraries the one with fewer devices",
        ),
        pytest.param(
            request(), [gpu(40), gpu(40, "r", "ROCm")], {"a": 4}, id="of two equal ones the first"
        ),
        pytest.param(request(n_gpu_layers=0), [gpu(99)], {}, id="none are forced"),
        pytest.param(request(n_gpu_layers=1), [gpu(99)], {"a": 1}, id="one is forced"),
        pytest.param(request(n_gpu_layers=3), [gpu(99)], {"a": 3}, id="fewer than fit"),
        pytest.param(request(n_gpu_layers=4), [gpu(15)], {"a": 4}, id="more than fit"),
        pytest.param(request(n_gpu_layers=999), [gpu(15)], {"a": 4}, id="more than there are"),
        pytest.param(request(n_gpu_layers=2), [gpu(-5)], {"a": 2}, id="forced into nothing"),
        pytest.param(
            request(n_gpu_layers=2), [gpu(10), gpu(10, "b")], {"b": 1, "a": 1}, id="forced, two"
        ),
        pytest.param(
            request((10,) * 6, n_gpu_layers=6),
            [gpu(20), gpu(10, "b")],
            {"b": 2, "a": 4},
            id="forced beyond two, in proportion",
        ),
        pytest.param(
            request(n_gpu_layers=4),
            [gpu(15), gpu(25, "v", "Vulkan")],
            {"v": 4},
            id="forced beyond two libraries: where there is more room",
        ),
    ],
)
def test_layers_are_placed(
    asked: PlacementRequest, devices: list[Device], expected: dict[str, int]
) -> None:
    assert list(shown(place(asked, devices)).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [
        pytest.param(request(tensor_split=(1, 1)), [40, 40], {"a": 2, "b": 2}, id="even"),
        pytest.param(request(tensor_split=(3, 1)), [40, 40], {"a": 3, "b": 1}, id="uneven"),
        pytest.param(request(tensor_split=(0, 1)), [40, 40], {"b": 4}, id="one has none"),
        pytest.param(request(tensor_split=(1, 0)), [40, 40], {"a": 4}, id="the last has none"),
        pytest.param(request(tensor_split=(1,)), [40, 40], {"a": 4}, id="fewer than devices"),
        pytest.param(request(tensor_split=(1, 1)), [10, 90], {"a": 1, "b": 1}, id="as many as fit"),
        pytest.param(request(tensor_split=(1, 1)), [90, 5], {"a": 1}, id="an odd one is the first"),
        pytest.param(
            request(tensor_split=(1, 1), n_gpu_layers=4), [5, 5], {"a": 2, "b": 2}, id="forced"
        ),
        pytest.param(request(tensor_split=(1, 1), n_gpu_layers=0), [40, 40], {}, id="none"),
    ],
)
def test_layers_are_split_by_shares_in_the_order_of_the_devices(
    asked: PlacementRequest, devices: list[int], expected: dict[str, int]
) -> None:
    here = [gpu(free, device_id) for free, device_id in zip(devices, "ab", strict=True)]
    assert list(shown(place(asked, [CPU, *here])).items()) == list(expected.items())


def test_more_shares_than_devices_are_an_error_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="2 shares for 1 devices"):
        place(request(tensor_split=(1, 1)), [CPU, gpu(99)])


def test_shares_for_two_libraries_are_an_error_that_names_them() -> None:
    with pytest.raises(ConfigError, match="CUDA, Vulkan"):
        place(request(tensor_split=(1, 1)), [gpu(99), gpu(99, "v", "Vulkan")])


@pytest.mark.parametrize(
    ("n_failures", "n_layers"), [(0, 4), (1, 3), (2, 3), (3, 2), (6, 1), (7, 1), (8, 0), (9, 0)]
)
def test_each_failure_leaves_a_tenth_less_to_be_believed(n_failures: int, n_layers: int) -> None:
    placement = back_off(request(), [gpu(40)], n_failures)
    assert placement.n_gpu_layers == n_layers


def test_after_the_last_step_main_memory_is_left() -> None:
    assert back_off(request(), [gpu(2**40)], BACK_OFF) == MAIN_MEMORY


def test_a_device_keeps_what_is_free_of_it_when_less_is_believed() -> None:
    device = gpu(40)
    assert back_off(request(), [device], 3).devices == (device,)


def test_the_reserve_does_not_shrink_with_what_is_believed() -> None:
    placement = back_off(request(reserve=10), [gpu(40)], 5)
    assert shown(placement) == {"a": 1}


def test_less_than_nothing_free_stays_so_whatever_is_believed() -> None:
    assert back_off(request(), [gpu(-40)], 5) == MAIN_MEMORY


def test_what_is_placed_does_not_hang_on_the_total() -> None:
    device = gpu(40)
    assert place(request(), [replace(device, total_bytes=0)]).n_layers == (4,)
