"""The devices that llama.cpp can place layers on, as ggml's registry knows them.

To ask a CUDA device for its memory or its PCI id takes hundreds of megabytes of it. So nothing is
asked of a device but its name and kind before it is known to be wanted, or all that are wanted
by a PCI id have to be found. What is excluded is best hidden, see `runnerd.device_env`.

What CUDA, ROCm and Vulkan answer is not yet measured. Source: ggml-backend.h.
"""

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from runnerd.engine.device import CPU_ID, Device, DeviceKind
from runnerd.engine.llama.library import ggml
from runnerd.errors import ConfigError

# ggml_backend_dev_type. Accelerators work for the CPU, and "meta" devices stand for several.
KINDS: dict[int, DeviceKind] = {0: "cpu", 1: "gpu", 2: "integrated"}


class _Capabilities(ctypes.Structure):
    """ggml_backend_dev_caps."""

    _fields_ = tuple(
        (name, ctypes.c_bool)
        for name in ("async", "host_buffer", "buffer_from_host_ptr", "events", "mmap_support")
    )


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props; memory is signed: a driver may say that less than none is free."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_ssize_t),
        ("memory_total", ctypes.c_ssize_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", _Capabilities),
    )


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(ggml, name)
    function.restype, function.argtypes = result, arguments


_declare("ggml_backend_dev_count", ctypes.c_size_t)
_declare("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
_declare("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
_declare("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
_declare("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
_declare("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
_declare("ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.POINTER(_Properties))


@dataclass(frozen=True, slots=True)
class Listed:
    """A device of which nothing was asked that would take memory; `handle` is ggml's pointer."""

    handle: int
    name: str
    kind: DeviceKind
    library: str


def listed() -> Iterator[Listed]:
    """Yield the devices of all libraries that are loaded, the CPU included."""
    for index in range(ggml.ggml_backend_dev_count()):
        handle: int = ggml.ggml_backend_dev_get(index)
        kind = KINDS.get(ggml.ggml_backend_dev_type(handle))
        if kind is not None:
            library: int | None = ggml.ggml_backend_dev_backend_reg(handle)
            yield Listed(
                handle,
                name=_text(ggml.ggml_backend_dev_name(handle)),
                kind=kind,
                library=_text(ggml.ggml_backend_reg_name(library)) if library else "",
            )


def find_devices(wanted: Sequence[str] | None) -> tuple[Device, ...]:
    """Return the devices beside the CPU with these ids, in ggml's order; None: all there are.

    Raises:
        ConfigError: there is none with an id.
    """
    others = [each for each in listed() if each.kind != "cpu"]
    if wanted is None:
        return with_ids(map(described, others))
    ids = {each.lower(): each for each in wanted if each.lower() != CPU_ID}
    by_name = [each for each in others if each.name.lower() in ids]
    if len(by_name) == len(ids):
        return with_ids(map(described, by_name))
    found = with_ids(map(described, others))
    known = {text.lower() for each in found for text in (each.id, each.name)}
    unknown = [own for lower, own in ids.items() if lower not in known]
    if unknown:
        there = ", ".join(device.id for device in found) or "none"
        raise ConfigError(f"devices {', '.join(unknown)}: there are {there}")
    return tuple(each for each in found if each.id.lower() in ids or each.name.lower() in ids)


def described(device: Listed) -> Device:
    """Ask a device for its properties; as its id what ggml has for one, which may be nothing."""
    properties = _Properties()
    ggml.ggml_backend_dev_get_props(device.handle, ctypes.byref(properties))
    return Device(
        id=_text(properties.device_id),
        name=device.name,
        kind=device.kind,
        total_bytes=properties.memory_total,
        free_bytes=properties.memory_free,
        library=device.library,
        description=_text(properties.description),
    )


def with_ids(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Give a device without an id its name for one, and tell those apart that have the same."""
    taken: Counter[str] = Counter()
    named = []
    for device in devices:
        own = device.id.lower() or device.name
        n_before = taken[own]
        taken[own] += 1
        named.append(replace(device, id=f"{own}:{n_before}" if n_before else own))
    return tuple(named)


def handles_of(devices: Iterable[Device]) -> list[int]:
    """Return ggml's pointers to devices that were found."""
    handles = {(each.library, each.name): each.handle for each in listed()}
    return [handles[device.library, device.name] for device in devices]


def _text(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")
