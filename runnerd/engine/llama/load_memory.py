"""What a load has taken of memory, and the report of one that found too little.

Source of the words: ggml-backend.cpp and ggml-alloc.c ("failed to allocate buffer of size"),
llama-context.cpp and llama-kv-cache.cpp (what it was for).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from runnerd.engine.device import CPU_ID
from runnerd.engine.llama.shape import CELL_STEP
from runnerd.engine.memory import available_bytes
from runnerd.engine.memory_plan import FailedAllocation, MemoryPlan
from runnerd.engine.out_of_memory import out_of_memory
from runnerd.errors import OutOfMemory

_SIZE = re.compile(r"failed to allocate (?:(\S+) )?buffer of size (\d+)")
_KINDS = {
    "kv cache": "KV cache",
    "rs cache": "recurrent states",
    "compute": "compute buffer",
    "output buffer": "output buffer",
    "lora": "adapter",
}


def failed_allocation(words: str, what: str) -> FailedAllocation:
    """Return what failed, by llama.cpp's words; `what` is it where they do not tell."""
    kind = next((kind for word, kind in _KINDS.items() if word in words), what)
    sizes = _SIZE.findall(words)
    names = [name for name, _ in sizes if name]
    device = names[-1] if names else ""
    n_bytes = int(sizes[-1][1]) if sizes else 0
    return FailedAllocation(kind, CPU_ID if device.startswith("CPU") else device, n_bytes)


def check_room(n_bytes: int, what: str) -> None:
    """Refuse to go on where llama.cpp would end the process.

    Raises:
        OutOfMemory: less than that is left of main memory.
    """
    available = available_bytes()
    if n_bytes > available:
        message = f"{what}: {n_bytes} bytes wanted, {available} bytes of memory are available"
        raise OutOfMemory(message, failed=FailedAllocation(what, CPU_ID, n_bytes))


@contextmanager
def reported(what: str, plan: Callable[[], MemoryPlan]) -> Iterator[None]:
    """Give whatever finds no memory within the block a report, and say what would fit.

    `plan` makes the plan of what was to be loaded.

    Raises:
        OutOfMemory: with the plan and the allocation that failed.
    """
    try:
        yield
    except OutOfMemory as err:
        failed = err.failed
        if not isinstance(failed, FailedAllocation):
            failed = failed_allocation(str(err), what)
        raise _report(str(err), plan().with_failure(failed)) from err
    except MemoryError as err:
        failed = FailedAllocation(what, CPU_ID)
        raise _report(f"no memory for {what}: {err}", plan().with_failure(failed)) from err


def _report(message: str, plan: MemoryPlan) -> OutOfMemory:
    return out_of_memory(message, replace(plan, n_ctx_fits=smaller_n_ctx(plan), is_measured=False))


def smaller_n_ctx(plan: MemoryPlan) -> int:
    """Return the context per slot, below the plan's, that main memory has room for."""
    main = plan.devices[0]
    if not main.kv_bytes:
        return 0
    room = main.device.free_bytes - main.reserve_bytes - (main.needed_bytes - main.kv_bytes)
    n_fit = room * plan.n_ctx // main.kv_bytes // CELL_STEP * CELL_STEP
    return max(0, min(n_fit, (plan.n_ctx - 1) // CELL_STEP * CELL_STEP))
