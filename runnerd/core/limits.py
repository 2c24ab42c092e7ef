"""What an engine can hold and run."""

from dataclasses import dataclass

COPY_ROWS = 32  # a stream copy takes about 10 ms for SmolLM2 at 4096 cells on two cores


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold and run.

    `n_ctx` inputs per slot; `n_cells` inputs over all slots, at most `n_slots * n_ctx`;
    `n_batch` rows per step; `n_ubatch` rows in a batch that is not causal.

    `is_unified`: all slots draw on one pool of cells, so a copy shares them; otherwise each slot
    has `n_ctx` cells of its own, and a copy costs about what `COPY_ROWS` rows do.
    `window`: some layers keep no more than about the last so many positions of a slot; 0: every
    layer keeps all. `can_rewind` False: the state knows only all that it has seen (recurrent).
    In both cases a slot goes back by a checkpoint, or starts again. `has_attention` False: no
    layer keeps anything of single positions, so a checkpoint can be restored into any slot.
    `n_tile`: so many rows of one slot in a step, or more, take less time each than fewer do; 1:
    no such bound is known.
    """

    n_slots: int
    n_ctx: int
    n_cells: int
    n_batch: int
    n_ubatch: int
    can_shift: bool = True
    is_unified: bool = False
    window: int = 0
    can_rewind: bool = True
    has_attention: bool = True
    n_tile: int = 1

    @property
    def needs_checkpoints(self) -> bool:
        """Whether going back in a slot takes more than forgetting its end."""
        return self.window > 0 or not self.can_rewind
