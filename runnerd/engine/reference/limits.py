"""What the engine can hold and run, by its configuration and options."""

from runnerd.core.batch import Limits
from runnerd.engine.base import EngineConfig
from runnerd.engine.reference.options import LayerKind, ReferenceOptions
from runnerd.errors import ConfigError

N_CTX = 512  # where the configuration leaves it to the model
N_IMAGE_ROWS = 256  # likewise


def plan_limits(config: EngineConfig, options: ReferenceOptions) -> Limits:
    """Settle what the configuration leaves open.

    Raises:
        ConfigError: there are fewer cells than a split cache takes.
    """
    n_slots, n_ctx = config.n_slots, config.n_ctx or N_CTX
    n_all = n_slots * n_ctx
    n_cells = min(config.n_cells or options.cells or n_all, n_all)
    is_over_committed = n_cells < n_all
    if is_over_committed and config.kv == "split":
        raise ConfigError(f"{n_cells} cells are less than {n_slots} slots of {n_ctx}: kv is split")
    forgets = LayerKind.SLIDING in options.kinds and not config.swa_full
    return Limits(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=n_cells,
        n_batch=config.n_batch,
        n_ubatch=config.n_ubatch,
        can_shift=options.shift and not (forgets or options.recurrent or options.mrope),
        is_unified=config.kv == "unified" or is_over_committed,
        window=options.window if forgets else 0,
        can_rewind=not options.recurrent,
        has_attention=not options.recurrent or options.layers > 1,
    )


def plan_image_rows(config: EngineConfig, options: ReferenceOptions) -> int:
    """Return the most rows that an image may have; 0: the model reads none.

    The file of a projector is not looked at: a model that reads images has one of its own.

    Raises:
        ConfigError: there is a projector for a model that reads none, or rows that the model
            needs in one pass are more than a pass takes.
    """
    if not options.images:
        if config.mmproj:
            raise ConfigError(f"reference engine: images=0 with a projector, {config.mmproj}")
        return 0
    if not options.non_causal:
        return config.n_image_rows or N_IMAGE_ROWS
    n_pass = min(config.n_batch, config.n_ubatch)
    if config.n_image_rows > n_pass:
        raise ConfigError(
            f"images of {config.n_image_rows} rows go through the model in one pass, which"
            f" takes {n_pass}"
        )
    return config.n_image_rows or min(N_IMAGE_ROWS, n_pass)
