"""Who made this machine's processor."""

from pathlib import Path

INTEL = "GenuineIntel"


def cpu_vendor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the vendor's name as the processor tells it (CPUID leaf 0), "" where none is told.

    Source: proc(5); x86 only, other architectures have no such line.
    """
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:  # no /proc is mounted
        return ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
    return next(found, "")
