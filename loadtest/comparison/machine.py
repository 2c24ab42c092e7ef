"""What machine this is, for reports."""

import os
import platform
from pathlib import Path

import psutil

from loadtest.comparison.results import Machine


def this_machine() -> Machine:
    """Return what it is, as far as it says."""
    return Machine(
        cpu=_cpu(),
        n_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def _cpu() -> str:
    """Return the processor's name; where the kernel has none (on ARM), its architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
