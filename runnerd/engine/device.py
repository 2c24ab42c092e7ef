"""A device that layers can be placed on, as it looks at one moment."""

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "gpu", "integrated"]

CPU_ID = "cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """A device. `free_bytes` may be below zero where others took more than there is.

    `id` is its PCI bus id where one is known, else its library's name for it ("CUDA0"); it is
    unique among the devices of a machine. Main memory has the id `CPU_ID`.
    """

    id: str
    name: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int
    library: str = ""
    description: str = ""
