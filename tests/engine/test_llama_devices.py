"""Devices are listed, told apart, and asked only where they are wanted."""

import subprocess
import sys

import psutil
import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine.device import Device
from runnerd.engine.llama.devices import described, find_devices, handles_of, listed, with_ids
from runnerd.errors import ConfigError

pytestmark = pytest.mark.llama


def raw(device_id: str, name: str, library: str = "CUDA") -> Device:
    """Return a device with the id that ggml has for it, which may be none."""
    return Device(device_id, name, "gpu", 100, 50, library)


def ids(*devices: Device) -> list[str]:
    return [device.id for device in with_ids(devices)]


def test_the_cpu_is_listed_with_its_name_and_library() -> None:
    (cpu,) = [device for device in listed() if device.kind == "cpu"]
    assert (cpu.name, cpu.library) == ("CPU", "CPU")
    assert cpu.handle


def test_the_cpu_tells_of_main_memory_and_has_no_id() -> None:
    (cpu,) = [described(device) for device in listed() if device.kind == "cpu"]
    assert cpu.total_bytes == psutil.virtual_memory().total
    assert 0 < cpu.free_bytes <= cpu.total_bytes
    assert cpu.id == ""
    assert cpu.description


def test_the_cpu_is_no_device_to_place_layers_on() -> None:
    assert all(device.kind != "cpu" for device in find_devices(None))


@pytest.mark.parametrize("wanted", [(), ("cpu",)])
def test_none_is_found_where_none_is_wanted(wanted: tuple[str, ...]) -> None:
    assert find_devices(wanted) == ()


def test_an_unknown_id_is_an_error_with_the_ids_that_there_are() -> None:
    there = ", ".join(device.id for device in find_devices(None)) or "none"
    with pytest.raises(ConfigError, match=f"devices Nowhere9: there are {there}"):
        find_devices(("Nowhere9",))


def test_a_pci_id_is_the_id() -> None:
    assert ids(raw("0000:C1:00.0", "CUDA0")) == ["0000:c1:00.0"]


def test_a_device_without_an_id_goes_by_its_name() -> None:
    assert ids(raw("", "Vulkan0"), raw("", "Vulkan1")) == ["Vulkan0", "Vulkan1"]


def test_devices_with_the_same_id_are_told_apart() -> None:
    same = [raw("0000:01:00.0", "CUDA0"), raw("0000:01:00.0", "Vulkan0", "Vulkan")]
    assert ids(*same, raw("0000:01:00.0", "x")) == [
        "0000:01:00.0",
        "0000:01:00.0:1",
        "0000:01:00.0:2",
    ]


def test_handles_are_those_of_the_devices() -> None:
    cpu = next(listed())
    assert handles_of([described(cpu)]) == [cpu.handle]


def test_no_library_of_devices_is_loaded_before_the_variables_are_set() -> None:
    code = "import sys, runnerd.commands.serve, runnerd.device_env; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=30)
    modules = done.stdout.split()
    assert "runnerd.device_env" in modules
    assert "llama_cpp" not in modules
