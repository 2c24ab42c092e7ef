"""Devices that are excluded are hidden by variables, as each library documents them."""

from pathlib import Path

import pytest

from runnerd.device_env import device_env

NVIDIA_0, NVIDIA_1, AMD, INTEL = "0000:01:00.0", "0000:02:00.0", "0000:c3:00.0", "0000:00:02.0"
UUIDS = {
    NVIDIA_0: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    NVIDIA_1: "GPU-00000000-d72c-4106-c12f-20bd9faed9f6",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with the files that the kernel has of four devices."""
    for pci_id, vendor in (
        (NVIDIA_0, "0x10de"),
        (NVIDIA_1, "0x10de"),
        (AMD, "0x1002"),
        (INTEL, "0x8086"),
    ):
        folder = tmp_path / "sys/bus/pci/devices" / pci_id
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
    (tmp_path / "sys/bus/pci/devices" / AMD / "unique_id").write_text("4b2c1a9f8d3e6f7a\n")
    for pci_id, uuid in UUIDS.items():
        folder = tmp_path / "proc/driver/nvidia/gpus" / pci_id
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA A10\nIRQ:   \t\t 166\nGPU UUID: \t {uuid}\nVideo BIOS: \t ??\n"
        (folder / "information").write_text(text)
    return tmp_path


def test_where_all_may_be_used_nothing_is_set() -> None:
    assert device_env(None) == {}


def test_where_none_may_be_used_every_library_finds_none() -> None:
    assert device_env(()) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "HIP_VISIBLE_DEVICES": "-1",
        "ROCR_VISIBLE_DEVICES": "",
        "GGML_VK_VISIBLE_DEVICES": "",
    }


def test_a_cuda_device_is_made_visible_by_its_uuid_and_others_hidden(root: Path) -> None:
    env = device_env((NVIDIA_1,), root)
    assert env["CUDA_VISIBLE_DEVICES"] == UUIDS[NVIDIA_1]
    assert env["HIP_VISIBLE_DEVICES"] == "-1"


def test_devices_keep_the_order_that_they_are_given_in(root: Path) -> None:
    env = device_env((NVIDIA_1, NVIDIA_0), root)
    assert env["CUDA_VISIBLE_DEVICES"] == f"{UUIDS[NVIDIA_1]},{UUIDS[NVIDIA_0]}"


def test_ids_are_taken_in_capitals_too(root: Path) -> None:
    assert device_env((AMD.upper(),), root) == device_env((AMD,), root)


def test_an_amd_device_is_made_visible_by_its_uuid_and_counted_from_there(root: Path) -> None:
    assert device_env((AMD,), root) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "ROCR_VISIBLE_DEVICES": "GPU-4b2c1a9f8d3e6f7a",
        "HIP_VISIBLE_DEVICES": "0",
    }


def test_a_device_of_neither_hides_both(root: Path) -> None:
    env = device_env((INTEL,), root)
    assert env["CUDA_VISIBLE_DEVICES"] == env["HIP_VISIBLE_DEVICES"] == "-1"
    assert "GGML_VK_VISIBLE_DEVICES" not in env


def test_a_library_that_may_serve_a_device_by_its_pci_id_is_not_hidden(root: Path) -> None:
    assert "GGML_VK_VISIBLE_DEVICES" not in device_env((NVIDIA_0,), root)


def test_a_device_that_the_kernel_does_not_show_hides_none() -> None:
    assert device_env((NVIDIA_0,), Path("/nowhere")) == {}


def test_where_a_uuid_cannot_be_told_its_library_shows_all(root: Path) -> None:
    (root / "proc/driver/nvidia/gpus" / NVIDIA_0 / "information").unlink()
    assert "CUDA_VISIBLE_DEVICES" not in device_env((NVIDIA_0, NVIDIA_1), root)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("CUDA1", "CUDA"), ("ROCm0", "HIP"), ("Vulkan1", "GGML_VK")],
)
def test_a_device_by_name_hides_the_other_libraries_alone(name: str, shown: str) -> None:
    env = device_env((name,), Path("/nowhere"))
    assert f"{shown}_VISIBLE_DEVICES" not in env
    hidden = {"CUDA", "HIP", "GGML_VK"} - {shown}
    assert {f"{library}_VISIBLE_DEVICES" for library in hidden} <= env.keys()
