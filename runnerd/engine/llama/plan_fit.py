"""The largest context that fits: found by trying, as a pretended context takes milliseconds."""

from collections.abc import Callable
from dataclasses import replace

from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.shape import CELL_STEP, DEFAULT_N_CTX, ContextShape, plan_shape
from runnerd.errors import ConfigError, OutOfMemory


def largest_n_ctx(
    config: EngineConfig, header: GGUFHeader, fits: Callable[[ContextShape], bool]
) -> int:
    """Return the largest context per slot that fits; 0: none does.

    It is at most the trained one, or all cells where their number is given, and else a multiple
    of 256. More context never takes less.
    """
    most = header.number("context_length") or DEFAULT_N_CTX
    most = min(most, config.n_cells or most)

    def fits_with(n_ctx: int) -> bool:
        try:
            return fits(plan_shape(replace(config, n_ctx=n_ctx), header))
        except (ConfigError, OutOfMemory):  # it is not possible at all
            return False

    n_fit, n_more = 0, CELL_STEP  # doubled, as the largest may be far beyond any memory
    while n_more < most and fits_with(n_more):
        n_fit, n_more = n_more, 2 * n_more
    if n_more >= most:
        if fits_with(most):
            return most
        n_more = most
    while n_more - n_fit > CELL_STEP:
        n_steps = (n_more - n_fit) // 2 // CELL_STEP
        middle = n_fit + max(1, n_steps) * CELL_STEP
        if fits_with(middle):
            n_fit = middle
        else:
            n_more = middle
    return n_fit
