"""What holds of every placement."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from runnerd.engine.device import Device, DeviceKind
from runnerd.engine.placement import BACK_OFF, Placement, PlacementRequest, back_off, place

KINDS: tuple[DeviceKind, ...] = ("cpu", "gpu", "integrated")
sizes = st.lists(st.integers(0, 60), max_size=12).map(tuple)
shares = st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any)
some_requests = st.builds(
    PlacementRequest,
    layers=sizes,
    compute_bytes=st.integers(0, 20),
    reserve_bytes=st.integers(0, 20),
    projector_bytes=st.integers(0, 40),
    n_gpu_layers=st.none(),
)


@st.composite
def some_devices(draw: st.DrawFn, n_least: int = 0, n_libraries: int = 3) -> list[Device]:
    kinds: list[DeviceKind] = draw(st.lists(st.sampled_from(KINDS), max_size=5))
    kinds += ["gpu"] * n_least
    libraries = st.sampled_from(("CUDA", "ROCm", "Vulkan")[:n_libraries])
    free = st.integers(-50, 300)
    return [
        Device(f"{n}", f"D{n}", kind, 300, draw(free), draw(libraries))
        for n, kind in enumerate(kinds)
    ]


def taken(request: PlacementRequest, placement: Placement) -> list[int]:
    """Return what each device of the placement has to hold, with the projector."""
    end = len(request.layers)
    found: list[int] = []
    for n in reversed(placement.n_layers):
        found.append(sum(request.layers[end - n : end]) + request.compute_bytes)
        end -= n
    if found:
        found[0] += request.projector_bytes
    return found[::-1]


@given(some_requests, some_devices())
def test_no_device_holds_more_than_is_free_beyond_the_reserve(
    request: PlacementRequest, devices: list[Device]
) -> None:
    placement = place(request, devices)
    for device, n_bytes in zip(placement.devices, taken(request, placement), strict=True):
        assert n_bytes <= device.free_bytes - request.reserve_bytes


@given(
    some_requests,
    some_devices(),
    st.none() | st.integers(0, 20),
)
def test_every_device_of_a_placement_is_one_of_a_single_library_and_has_layers(
    request: PlacementRequest, devices: list[Device], n_gpu_layers: int | None
) -> None:
    placement = place(replace(request, n_gpu_layers=n_gpu_layers), devices)
    assert all(n > 0 for n in placement.n_layers)
    assert len(placement.devices) == len(placement.n_layers) == len(set(placement.devices))
    assert all(device in devices and device.kind != "cpu" for device in placement.devices)
    assert len({device.library for device in placement.devices}) <= 1
    assert placement.n_gpu_layers <= len(request.layers)


@given(some_requests, some_devices(n_least=1), st.integers(0, 20))
def test_a_forced_number_of_layers_is_placed_whatever_is_free(
    request: PlacementRequest, devices: list[Device], n_gpu_layers: int
) -> None:
    placement = place(replace(request, n_gpu_layers=n_gpu_layers), devices)
    assert placement.n_gpu_layers == min(n_gpu_layers, len(request.layers))


@given(some_requests, some_devices(), st.data())
def test_more_memory_never_places_fewer_layers(
    request: PlacementRequest, devices: list[Device], data: st.DataObject
) -> None:
    more = [
        replace(device, free_bytes=device.free_bytes + data.draw(st.integers(0, 100)))
        for device in devices
    ]
    assert place(request, more).n_gpu_layers >= place(request, devices).n_gpu_layers


@given(some_requests, some_devices(n_least=3, n_libraries=1), shares, st.data())
def test_with_shares_more_memory_never_places_fewer_layers_either(
    request: PlacementRequest, devices: list[Device], split: list[float], data: st.DataObject
) -> None:
    request = replace(request, tensor_split=tuple(split))
    more = [
        replace(device, free_bytes=device.free_bytes + data.draw(st.integers(0, 100)))
        for device in devices
    ]
    placement = place(request, devices)
    for device, n_bytes in zip(placement.devices, taken(request, placement), strict=True):
        assert n_bytes <= max(0, device.free_bytes - request.reserve_bytes)
    assert place(request, more).n_gpu_layers >= placement.n_gpu_layers


@given(some_requests, some_devices())
def test_one_layer_more_would_not_fit_after_those_that_are_placed(
    request: PlacementRequest, devices: list[Device]
) -> None:
    n_placed = place(request, devices).n_gpu_layers
    left = request.layers[: len(request.layers) - n_placed]
    if not left:
        return
    for device in devices:
        if device.kind != "cpu" and n_placed == 0:
            room = device.free_bytes - request.reserve_bytes - request.compute_bytes
            assert room <= 0 or room < left[-1] + request.projector_bytes


@given(some_requests, some_devices())
def test_dedicated_devices_have_the_last_layers(
    request: PlacementRequest, devices: list[Device]
) -> None:
    kinds = [device.kind for device in place(request, devices).devices]
    assert kinds == sorted(kinds, key=lambda kind: kind == "gpu")


@given(some_requests, some_devices())
def test_fewer_devices_of_a_kind_would_hold_fewer_layers(
    request: PlacementRequest, devices: list[Device]
) -> None:
    placement = place(request, devices)
    if len({device.kind for device in placement.devices}) > 1:
        return  # dedicated ones come first, also where an integrated one could hold all
    for device in placement.devices:
        smaller = [each for each in placement.devices if each != device]
        assert place(request, smaller).n_gpu_layers < placement.n_gpu_layers


@given(some_requests, some_devices())
def test_with_each_failure_the_layers_grow_fewer_until_none_is_left(
    request: PlacementRequest, devices: list[Device]
) -> None:
    counts = [back_off(request, devices, n).n_gpu_layers for n in range(BACK_OFF + 1)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


@given(sizes.filter(bool), st.integers(1, 4), st.integers(100, 400))
def test_equal_devices_take_as_much_of_each_other_as_one_layer(
    layers: tuple[int, ...], n_devices: int, free: int
) -> None:
    devices = [Device(f"{n}", "", "gpu", free, free, "CUDA") for n in range(n_devices)]
    request = PlacementRequest(layers, 0, 0)
    placement = place(request, devices)
    if placement.n_gpu_layers < len(layers):
        return
    found = taken(request, placement)
    even = sum(layers) / max(1, len(found))
    assert all(n_bytes <= even + max(layers) for n_bytes in found)


@given(sizes, shares, st.integers(0, 20))
def test_a_forced_number_of_layers_is_divided_by_shares_without_losing_one(
    layers: tuple[int, ...], split: list[float], n_gpu_layers: int
) -> None:
    devices = [Device(f"{n}", "", "gpu", 1, 0, "CUDA") for n in range(len(split))]
    request = PlacementRequest(layers, 0, 0, n_gpu_layers=n_gpu_layers, tensor_split=tuple(split))
    placement = place(request, devices)
    n_placed = min(n_gpu_layers, len(layers))
    assert placement.n_gpu_layers == n_placed
    for device, n in zip(placement.devices, placement.n_layers, strict=True):
        share = split[int(device.id)] / sum(split)
        assert share > 0
        assert abs(n - share * n_placed) <= 1 + 1e-9
