"""Which layers go to which device: a pure function of sizes and of what is free.

Layers go from the last backwards, as llama.cpp takes them: the output layer first. Devices of
several libraries are never mixed, dedicated ones come before integrated ones, and as few are
used as hold all that can be held. Layers are then spread evenly over the devices.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from runnerd.engine.device import Device
from runnerd.errors import ConfigError

BACK_OFF = 10  # steps until nothing is believed to be free
GRAIN = 1 << 20  # budgets are scaled by fractions of this
GROWTH = 40  # doublings of the budgets, which hold any number of layers that is forced


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What is to be placed, in bytes. `layers` are blocks, then the output layer: weights + KV.

    `compute_bytes` and `reserve_bytes` are needed on each device that gets a layer, and
    `projector_bytes` where the output layer goes. `n_gpu_layers` None: as many as fit.
    `tensor_split`: shares by device, in place of what is free; empty: by what is free.
    """

    layers: tuple[int, ...]
    compute_bytes: int
    reserve_bytes: int
    projector_bytes: int = 0
    n_gpu_layers: int | None = None
    tensor_split: tuple[float, ...] = ()

    @property
    def is_forced(self) -> bool:
        """Whether it says what goes to devices, whatever is free there."""
        return bool(self.n_gpu_layers) or bool(self.tensor_split)

    @property
    def backwards(self) -> tuple[int, ...]:
        """What may go to devices, from the last layer on, with the projector in the first."""
        n_most = len(self.layers) if self.n_gpu_layers is None else self.n_gpu_layers
        sizes = self.layers[::-1][: max(0, n_most)]
        return (sizes[0] + self.projector_bytes, *sizes[1:]) if sizes else ()

    def budget(self, device: Device) -> int:
        """Return what layers may take of a device, never below zero."""
        return max(0, device.free_bytes - self.reserve_bytes - self.compute_bytes)


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices in the order they are given to the engine, and the layers of each.

    Layers go to them from the last backwards; what is left over stays in main memory. Of the
    layers on devices the first device has the first, and the last device the output layer.
    """

    devices: tuple[Device, ...]
    n_layers: tuple[int, ...]

    @property
    def n_gpu_layers(self) -> int:
        """Layers on devices, the output layer included."""
        return sum(self.n_layers)


MAIN_MEMORY = Placement((), ())  # all layers stay there


def place(request: PlacementRequest, devices: Sequence[Device]) -> Placement:
    """Place layers on devices, each within its budget but where a number of layers is forced.

    Raises:
        ConfigError: there are more shares than devices, or shares for several libraries.
    """
    devices = [device for device in devices if device.kind != "cpu"]
    if request.tensor_split:
        return _split(request, devices)
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.library, []).append(device)
    found = [_best(request, _in_order(group)) for group in groups.values()]
    if not found:
        return MAIN_MEMORY
    best = max(found, key=_rank)
    if best.n_gpu_layers == len(request.backwards) or request.n_gpu_layers is None:
        return best
    return max((_forced(request, _in_order(group)) for group in groups.values()), key=_room)


def back_off(request: PlacementRequest, devices: Sequence[Device], n_failures: int) -> Placement:
    """Place layers after so many loads have failed: a tenth less of what is free, for each.

    In the end nothing is believed to be free, and all goes to main memory.
    """
    if n_failures >= BACK_OFF:
        return MAIN_MEMORY
    left = BACK_OFF - n_failures
    believed = place(
        request,
        [
            replace(device, free_bytes=min(device.free_bytes, device.free_bytes * left // BACK_OFF))
            for device in devices
        ],
    )
    as_they_are = {device.id: device for device in devices}
    return replace(believed, devices=tuple(as_they_are[each.id] for each in believed.devices))


def _in_order(group: Sequence[Device]) -> list[Device]:
    """Return the devices in the order they are filled: the last layers go to the fastest."""
    return sorted(group, key=lambda device: (device.kind == "integrated", -device.free_bytes))


def _rank(placement: Placement) -> tuple[int, int, int]:
    n_integrated = sum(device.kind == "integrated" for device in placement.devices)
    return placement.n_gpu_layers, -n_integrated, -len(placement.devices)


def _room(placement: Placement) -> int:
    return sum(max(0, device.free_bytes) for device in placement.devices)


def _best(request: PlacementRequest, devices: Sequence[Device]) -> Placement:
    """Use the fewest devices, from the first on, that hold as many layers as all of them do."""
    sizes = request.backwards
    budgets = [request.budget(device) for device in devices]
    n_held = [sum(_fill(sizes, budgets[:n])) for n in range(len(devices) + 1)]
    n_used = n_held.index(n_held[-1])
    n_before = sum(device.kind == "gpu" for device in devices[:n_used])
    n_full = n_before if n_before < n_used else 0  # the faster are filled, the slower share
    counts = _spread(sizes, budgets[:n_used], n_full, GRAIN)
    return _placement(devices, counts)


def _spread(
    sizes: Sequence[int], budgets: Sequence[int], n_full: int, most: int
) -> tuple[int, ...]:
    """Fill with the smallest fraction of the budgets that still holds as many as `most` does.

    The first `n_full` keep their whole budgets. Fractions are in `GRAIN`.
    """

    def scaled(grains: int) -> list[int]:
        return [
            budget if at < n_full else budget * grains // GRAIN for at, budget in enumerate(budgets)
        ]

    n_held = sum(_fill(sizes, scaled(most)))
    grains = bisect_left(range(most), n_held, key=lambda grains: sum(_fill(sizes, scaled(grains))))
    return _fill(sizes, scaled(grains))


def _fill(sizes: Sequence[int], budgets: Sequence[int]) -> tuple[int, ...]:
    """Return how many layers each device takes, one device after the other."""
    ends = list(accumulate(sizes, initial=0))
    counts, start = [], 0
    for budget in budgets:
        # Where there is no budget, not even a layer of no size has room to be computed.
        end = bisect_right(ends, ends[start] + budget) - 1 if budget > 0 else start
        counts.append(end - start)
        start = end
    return tuple(counts)


def _forced(request: PlacementRequest, devices: Sequence[Device]) -> Placement:
    """Place the forced number of layers, in proportion to the budgets, or else to the devices."""
    sizes = request.backwards
    for budgets in (
        [request.budget(device) for device in devices],
        [device.total_bytes for device in devices],
    ):
        counts = _spread(sizes, budgets, 0, GRAIN << GROWTH)
        if sum(counts) == len(sizes):
            return _placement(devices, counts)
    return _placement(devices, (len(sizes),))  # nothing is known of the devices


def _split(request: PlacementRequest, devices: Sequence[Device]) -> Placement:
    """Place layers by the shares that were given: the most that fit, or the number forced."""
    shares = request.tensor_split
    if len(shares) > len(devices):
        raise ConfigError(f"tensor-split has {len(shares)} shares for {len(devices)} devices")
    libraries = {each.library for each, share in zip(devices, shares, strict=False) if share > 0}
    if len(libraries) > 1:
        raise ConfigError(
            f"tensor-split gives layers to devices of {', '.join(sorted(libraries))}:"
            " only one library is used at a time, choose with devices"
        )
    sizes = request.backwards
    budgets = [request.budget(device) for device in devices[: len(shares)]]
    n_layers = len(sizes)
    if request.n_gpu_layers is None:
        while n_layers and not _holds(budgets, sizes, _counts(shares, n_layers)):
            n_layers -= 1
    counts = _counts(shares, n_layers)
    return _placement(devices[len(shares) - 1 :: -1], counts[::-1])


def _counts(shares: Sequence[float], n_layers: int) -> list[int]:
    """Divide layers by shares.

    Source: llama-model.cpp, load_tensors: a layer goes to the first device whose share and those
    before it reach beyond it.
    """
    ends = [end / sum(shares) for end in accumulate(shares)]
    last = max(at for at, share in enumerate(shares) if share > 0)
    counts = [0] * len(shares)
    for layer in range(n_layers):
        counts[min(bisect_right(ends, layer / n_layers), last)] += 1
    return counts


def _holds(budgets: Sequence[int], sizes: Sequence[int], counts: Sequence[int]) -> bool:
    ends = list(accumulate(sizes, initial=0))
    start = 0
    for budget, n in zip(reversed(budgets), reversed(counts), strict=True):
        if n and (budget == 0 or ends[start + n] - ends[start] > budget):
            return False
        start += n
    return True


def _placement(devices: Sequence[Device], counts: Sequence[int]) -> Placement:
    """Return the devices that have layers, the one with the output layer last."""
    used = [(device, n) for device, n in zip(devices, counts, strict=False) if n]
    return Placement(
        tuple(device for device, _ in reversed(used)), tuple(n for _, n in reversed(used))
    )
