"""Whether main memory holds a KV cache, asked before it is made: to fill it would get us killed."""

import psutil

from runnerd.errors import OutOfMemory


def check_memory(
    n_slots: int, n_ctx: int, *, kv_bytes: int, bytes_per_ctx: int, step: int = 1
) -> None:
    """Refuse a KV cache of `kv_bytes` that main memory cannot hold.

    `bytes_per_ctx` is what one more position in every slot takes; contexts are made in
    multiples of `step`.

    Raises:
        OutOfMemory: with the numbers, and the largest context that would fit.
    """
    available: int = psutil.virtual_memory().available
    if kv_bytes <= available:
        return
    n_fit = available // bytes_per_ctx // step * step
    fits = f"a ctx of {n_fit} would fit" if n_fit else "no ctx would fit: use fewer slots"
    raise OutOfMemory(
        f"{n_slots} slots of {n_ctx} take {kv_bytes} bytes of KV cache, "
        f"{available} bytes of memory are available; {fits}"
    )
