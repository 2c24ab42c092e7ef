"""How large a context is: decided, and checked against the file, before anything loads."""

import os
from dataclasses import dataclass, replace

from runnerd.engine.base import MAX_SLOTS, EngineConfig, KVType
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.recurrent import recurrent_bytes
from runnerd.engine.memory import check_memory
from runnerd.errors import ConfigError

DEFAULT_N_CTX = 4096  # what a model was trained for can be more than there is memory for
CELL_STEP = 256  # llama.cpp rounds the cells of a stream up to this


@dataclass(frozen=True, slots=True)
class ContextShape:
    """The sizes of a context: `n_ctx` and `n_cells` as promised, `n_ctx_total` as allocated."""

    n_slots: int
    n_ctx: int
    n_cells: int
    n_ctx_total: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    unified: bool
    swa_full: bool
    kv_type: KVType

    @property
    def n_streams(self) -> int:
        """How many runs of cells there are: a slot uses its own, or all share one."""
        return 1 if self.unified else self.n_slots

    def n_sliding(self, n_swa: int) -> int:
        """Return the cells of a layer that sees only the last `n_swa` positions.

        Source: llama-kv-cache-iswa.cpp, size_swa.
        """
        if self.swa_full:
            return self.n_ctx_total
        n_windows = self.n_slots if self.unified else 1
        n_stream = _rounded(n_swa * n_windows + self.n_ubatch)
        return min(n_stream * self.n_streams, self.n_ctx_total)

    def window(self, n_swa: int) -> int:
        """Return `Limits.window` for a model some layers of which see `n_swa` positions.

        A shared run of cells is searched for room from wherever cells were given back last, and
        what lies behind its window is room: there even a full cache may forget.
        """
        if not 0 < n_swa < self.n_ctx:
            return 0
        keeps_all = not self.unified and self.n_sliding(n_swa) == self.n_ctx_total
        return 0 if keeps_all else n_swa


def plan_shape(config: EngineConfig, header: GGUFHeader) -> ContextShape:
    """Settle what the configuration leaves open.

    Raises:
        ConfigError: a size is beyond the model's or llama.cpp's bounds.
    """
    n_slots = config.n_slots
    if not 1 <= n_slots <= MAX_SLOTS:
        raise ConfigError(f"{n_slots} slots: llama.cpp has 1 to {MAX_SLOTS}")
    n_ctx = config.n_ctx or min(config.n_cells or DEFAULT_N_CTX, DEFAULT_N_CTX)
    trained = header.number("context_length")
    if trained is not None and n_ctx > trained:
        if config.n_ctx:
            raise ConfigError(f"a context of {n_ctx}: the model was trained for {trained}")
        n_ctx = trained
    n_cells = min(config.n_cells or n_slots * n_ctx, n_slots * n_ctx)
    over_committed = n_cells < n_slots * n_ctx
    if over_committed and config.kv == "split":
        raise ConfigError(f"{n_cells} cells are less than {n_slots} slots of {n_ctx}: kv is split")
    unified = config.kv == "unified" or over_committed
    n_ctx_total = _rounded(n_cells) if unified else n_slots * _rounded(n_ctx)
    # llama.cpp lowers both likewise, and ends the process where a batch cannot hold all slots.
    n_batch = min(config.n_batch, n_ctx_total)
    if n_batch < n_slots:
        raise ConfigError(f"batches of {n_batch} rows are less than {n_slots} slots")
    n_threads = config.n_threads or len(os.sched_getaffinity(0))
    n_ubatch = min(config.n_ubatch, n_batch)
    return ContextShape(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=n_cells,
        n_ctx_total=n_ctx_total,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_threads=n_threads,
        unified=unified,
        swa_full=config.swa_full,
        kv_type=config.kv_type,
    )


def raised_to(shape: ContextShape, n_rows: int) -> ContextShape:
    """Return the shape with passes of at least so many rows, which an image takes in one.

    Beside it every slot finds room in a step for the next row of its generation, which could
    otherwise wait for one image after another. An image is smaller than a context.
    """
    if n_rows == 0:
        return shape
    n_batch = min(max(shape.n_batch, n_rows + shape.n_slots), shape.n_ctx_total)
    return replace(shape, n_batch=n_batch, n_ubatch=max(shape.n_ubatch, n_rows))


def check_kv_cache(shape: ContextShape, header: GGUFHeader) -> None:
    """Refuse a KV cache that main memory cannot hold.

    Raises:
        OutOfMemory: with the numbers.
    """
    check_memory(shape.n_slots, shape.n_ctx, kv_bytes(shape, header) or 0)


def kv_bytes(shape: ContextShape, header: GGUFHeader) -> int | None:
    """Return the size of the whole KV cache at least, where the metadata tells."""
    per_layer = header.kv_bytes_per_layer(shape.kv_type)
    if per_layer is None:
        return recurrent_bytes(header, shape.kv_type, shape.n_ctx_total, shape.n_slots)
    n_swa = header.number("attention.sliding_window") or 0
    n_sliding = shape.n_sliding(n_swa) if n_swa else shape.n_ctx_total
    return sum(
        n_bytes * (n_sliding if header.may_slide(layer) else shape.n_ctx_total)
        for layer, n_bytes in enumerate(per_layer)
    )


def _rounded(n_cells: int) -> int:
    return -(-n_cells // CELL_STEP) * CELL_STEP
