"""Environment variables that hide devices from a process, set before any library loads.

A library that only looks at a device may take hundreds of megabytes of it, so what is excluded
must be hidden. Nothing but files is read here: to ask a library would be to load it. What cannot
be told from files stays visible, and is left alone because the model is given its devices by name.

Not yet measured on devices. Sources: CUDA Programming Guide, "CUDA Environment Variables"; ROCm,
"GPU isolation techniques"; NVIDIA driver README, "/proc/driver/nvidia/gpus"; Linux, sysfs-bus-pci
and amdgpu's unique_id; ggml-vulkan.cpp, ggml_vk_instance_init.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NVIDIA, AMD = "0x10de", "0x1002"  # PCI vendors
HIDE_CUDA = {"CUDA_VISIBLE_DEVICES": "-1"}
HIDE_ROCM = {"HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": ""}
HIDE_VULKAN = {"GGML_VK_VISIBLE_DEVICES": ""}  # an index that is not there ends the process
_PCI_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", re.MULTILINE)


def device_env(devices: Sequence[str] | None, root: Path = Path("/")) -> dict[str, str]:
    """Return the variables for a process that may use these devices only; None: all.

    `devices` are ids as `runnerd plan` shows them: PCI ids, or names such as "Vulkan1". `root`
    has the kernel's `proc` and `sys`.
    """
    if devices is None:
        return {}
    if not devices:
        return HIDE_CUDA | HIDE_ROCM | HIDE_VULKAN
    pci_ids = [each.lower() for each in devices if _PCI_ID.fullmatch(each.lower())]
    vendors = {pci_id: _vendor(root, pci_id) for pci_id in pci_ids}
    is_known = all(vendors.values())
    env: dict[str, str] = {}
    if not _names(devices, "CUDA"):
        uuids = [_cuda_uuid(root, each) for each in pci_ids if vendors[each] == NVIDIA]
        if uuids and all(uuids):
            env["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
        elif not uuids and is_known:
            env |= HIDE_CUDA
    if not _names(devices, "ROCm"):
        uuids = [_rocm_uuid(root, each) for each in pci_ids if vendors[each] == AMD]
        if uuids and all(uuids):
            env["ROCR_VISIBLE_DEVICES"] = ",".join(uuids)
            # HIP counts what is left, and would else take CUDA's variable for its own.
            env["HIP_VISIBLE_DEVICES"] = ",".join(map(str, range(len(uuids))))
        elif not uuids and is_known:
            env |= HIDE_ROCM
    if not pci_ids and not _names(devices, "Vulkan"):
        env |= HIDE_VULKAN
    return env


def _names(devices: Sequence[str], library: str) -> bool:
    """Whether a device is given by the name that a library counts it under."""
    return any(each.startswith(library) for each in devices)


def _vendor(root: Path, pci_id: str) -> str:
    return _read(root / "sys/bus/pci/devices" / pci_id / "vendor").strip()


def _cuda_uuid(root: Path, pci_id: str) -> str:
    found = _UUID.search(_read(root / "proc/driver/nvidia/gpus" / pci_id / "information"))
    return found[1] if found else ""


def _rocm_uuid(root: Path, pci_id: str) -> str:
    unique_id = _read(root / "sys/bus/pci/devices" / pci_id / "unique_id").strip()
    return f"GPU-{unique_id}" if unique_id else ""


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
