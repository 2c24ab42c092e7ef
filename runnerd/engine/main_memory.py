"""Main memory as a device, the first of every plan."""

import psutil

from runnerd.engine.device import CPU_ID, Device
from runnerd.engine.memory import available_bytes


def main_memory() -> Device:
    """Return main memory as it is now; what is free there is what this process can take."""
    return Device(
        id=CPU_ID,
        name="CPU",
        kind="cpu",
        total_bytes=psutil.virtual_memory().total,
        free_bytes=available_bytes(),
        description="main memory",
    )
