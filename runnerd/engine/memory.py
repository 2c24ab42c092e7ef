"""How much memory there is for a load, and whether it holds what is wanted.

To take what is not there gets the process killed, or the machine to a halt, with no word said.
"""

import resource
from collections.abc import Iterable

import psutil

from runnerd.engine.control_group import headroom_of_groups
from runnerd.engine.device import CPU_ID
from runnerd.engine.memory_plan import FailedAllocation
from runnerd.errors import OutOfMemory


def available_bytes() -> int:
    """Return what this process can take of main memory: the least of what any limit leaves.

    Those are what the machine has, the control groups that the process is in, and its own limits
    of address space and of data.
    """
    machine: int = psutil.virtual_memory().available
    return max(0, min([machine, *headroom_of_groups(), *_headroom_of_limits()]))


def _headroom_of_limits() -> Iterable[int]:
    """Yield what the process's own limits leave; nothing where it has none."""
    limits = {which: resource.getrlimit(which)[0] for which in _LIMITS}
    if all(limit == resource.RLIM_INFINITY for limit in limits.values()):
        return
    used = psutil.Process().memory_info()
    for which, limit in limits.items():
        if limit != resource.RLIM_INFINITY:
            yield limit - getattr(used, _LIMITS[which], 0)


_LIMITS = {resource.RLIMIT_AS: "vms", resource.RLIMIT_DATA: "data"}  # as psutil calls what counts


def check_memory(n_slots: int, n_ctx: int, kv_bytes: int) -> None:
    """Refuse a KV cache of `kv_bytes` that main memory cannot hold.

    Raises:
        OutOfMemory: with the numbers.
    """
    available = available_bytes()
    if kv_bytes > available:
        raise OutOfMemory(
            f"{n_slots} slots of {n_ctx} take {kv_bytes} bytes of KV cache, "
            f"{available} bytes of memory are available",
            failed=FailedAllocation("KV cache", CPU_ID, kv_bytes),
        )
