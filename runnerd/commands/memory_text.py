"""What a model takes of memory, in words and aligned lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runnerd.commands.measures import size
from runnerd.harmless import harmless_line
from runnerd_protocol.messages import DeviceMemory, LayerMemory, Memory

INDENT = "  "


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are alike, by their numbers (`0-4, 6-10`), and what each of them takes."""

    numbers: str
    layer: LayerMemory

    @property
    def remark(self) -> str:
        """What is special about them."""
        if self.layer.slides:
            return "sliding window"
        return "reads another layer's KV" if self.layer.shares_kv else ""


def layer_groups(layers: Sequence[LayerMemory]) -> list[LayerGroup]:
    """Return the layers in groups of equals; the last one is the output layer."""
    if not layers:
        return []
    numbers: dict[tuple[object, ...], list[int]] = {}
    for number, layer in enumerate(layers[:-1]):
        numbers.setdefault(_facts(layer), []).append(number)
    groups = [LayerGroup(_ranges(those), layers[those[0]]) for those in numbers.values()]
    return [*groups, LayerGroup("output", layers[-1])]


def _facts(layer: LayerMemory) -> tuple[object, ...]:
    return (layer.device, layer.weight_bytes, layer.kv_bytes, layer.slides, layer.shares_kv)


def _ranges(numbers: list[int]) -> str:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def needed_bytes(device: DeviceMemory) -> int:
    """Return all that goes to a device."""
    return sum(n_bytes for _, n_bytes in parts_of(device))


def usable_bytes(device: DeviceMemory) -> int:
    """Return what of the device's memory may be taken."""
    return device.free_bytes - device.reserve_bytes


def parts_of(device: DeviceMemory) -> list[tuple[str, int]]:
    """Return what goes to a device, by what it is for."""
    parts = [
        ("weights", device.weight_bytes),
        ("KV cache", device.kv_bytes),
        ("compute", device.compute_bytes),
        ("output", device.output_bytes),
        ("projector", device.projector_bytes),
        ("host", device.host_bytes),
    ]
    return [(name, n_bytes) for name, n_bytes in parts if n_bytes]


def heading(memory: Memory) -> str:
    """Return what is planned, in a line."""
    how = "sized by the engine" if memory.is_measured else "estimated"
    return (
        f"{harmless_line(memory.model)} ({harmless_line(memory.architecture)}):"
        f" {memory.n_slots} slots x {memory.n_ctx} tokens, {memory.n_cells} cells"
        f" ({memory.kv}, {memory.kv_type}), {how}"
    )


def device_title(device: DeviceMemory) -> str:
    """Return a device's names."""
    name = device.description or device.name
    library = f", {harmless_line(device.library)}" if device.library else ""
    return f"{harmless_line(device.id)}: {harmless_line(name)} ({device.kind}{library})"


def room(device: DeviceMemory) -> str:
    """Return what may be taken of a device, and why no more."""
    free = f"{size(device.free_bytes)} free of {size(device.total_bytes)}"
    if not device.reserve_bytes:
        return free
    usable = size(max(0, usable_bytes(device)))
    return f"of {usable}: {free}, {size(device.reserve_bytes)} stay free"


def verdict(memory: Memory) -> list[str]:
    """Return whether it fits, and what would; a sentence each."""
    sentences = [*_failure(memory), _fit(memory)]
    if memory.n_ctx_fits:
        sentences.append(
            f"The largest context that fits is {memory.n_ctx_fits} tokens for each of"
            f" {memory.n_slots} slots (--ctx {memory.n_ctx_fits})."
        )
    elif not memory.fits:
        sentences.append(f"No context fits with {memory.n_slots} slots.")
    if any(device.kind != "cpu" for device in memory.devices):
        n_fit = memory.n_gpu_layers_fit
        sentences.append(
            f"{memory.n_gpu_layers} of {len(memory.layers)} layers go to devices,"
            f" {n_fit} fit (--gpu-layers {n_fit})."
        )
    if memory.cache_bytes:
        sentences.append(
            f"While it works, checkpoints and images may take {size(memory.cache_bytes)} more."
        )
    return sentences


def _failure(memory: Memory) -> Iterator[str]:
    if memory.failed is not None:
        failed = memory.failed
        where = f" on {harmless_line(failed.device)}" if failed.device else ""
        amount = f": {size(failed.n_bytes)}" if failed.n_bytes else ""
        yield f"The load ran out of memory for {harmless_line(failed.what)}{where}{amount}."


def _fit(memory: Memory) -> str:
    if memory.fits:
        return "It fits."
    lacks = [
        f"{size(needed_bytes(device) - usable_bytes(device))} on {harmless_line(device.id)}"
        for device in memory.devices
        if needed_bytes(device) > usable_bytes(device)
    ]
    return f"It does not fit: it lacks {', '.join(lacks)}." if lacks else "It does not fit."


def memory_lines(memory: Memory) -> Iterator[str]:
    """Yield the whole report in aligned lines."""
    yield heading(memory)
    for device in memory.devices:
        yield ""
        yield device_title(device)
        for name, n_bytes in parts_of(device):
            yield f"{INDENT}{name:<10}{size(n_bytes):>12}"
        yield f"{INDENT}{'needed':<10}{size(needed_bytes(device)):>12}  {room(device)}"
    yield ""
    yield from _layer_lines(memory)
    yield ""
    yield from verdict(memory)


def _layer_lines(memory: Memory) -> Iterator[str]:
    groups = layer_groups(memory.layers)
    n_wide = max([len("layers"), *(len(group.numbers) for group in groups)])
    n_device = max([len("device"), *(len(harmless_line(each.layer.device)) for each in groups)])
    yield f"{'layers':<{n_wide}}  {'device':<{n_device}}  {'weights':>10}  {'KV cache':>10}"
    if memory.input_bytes:
        yield f"{'input':<{n_wide}}  {'':<{n_device}}  {size(memory.input_bytes):>10}"
    for group in groups:
        layer = group.layer
        line = (
            f"{group.numbers:<{n_wide}}  {harmless_line(layer.device):<{n_device}}"
            f"  {size(layer.weight_bytes):>10}  {size(layer.kv_bytes):>10}  {group.remark}"
        )
        yield line.rstrip()
