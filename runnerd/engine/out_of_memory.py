"""The error of a load that found too little memory: what it needs, and what would fit."""

from runnerd.engine.memory_plan import MemoryPlan
from runnerd.errors import OutOfMemory


def out_of_memory(message: str, plan: MemoryPlan) -> OutOfMemory:
    """Return the error with the plan of what was to be loaded, which has what failed, and fits."""
    n_fit, main = plan.n_ctx_fits, plan.devices[0].device
    fits = f"a ctx of {n_fit} would fit" if n_fit else "no ctx would fit"
    numbers = f"{plan.needed_bytes} bytes are needed, {main.free_bytes} were free"
    return OutOfMemory(f"{message}; {numbers}; {fits}", plan)
