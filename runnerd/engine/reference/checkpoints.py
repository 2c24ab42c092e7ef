"""Checkpoints: what a slot cannot get back by forgetting its end, kept by id."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runnerd.engine.reference.cache import Memory

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A slot's state after `inputs`: of sliding layers the cells from `floor` on, and states."""

    inputs: list[int]
    positions: list[int]
    floor: int
    slid: tuple[Floats, ...]
    states: Floats

    @property
    def n_bytes(self) -> int:
        """The size of its arrays."""
        return self.states.nbytes + sum(array.nbytes for array in self.slid)


class Checkpoints:
    """The checkpoints of an engine's memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._kept: dict[int, Checkpoint] = {}

    def save(self, checkpoint_id: int, slot_id: int) -> None:
        """Keep a slot's state as it is now."""
        assert checkpoint_id not in self._kept, f"checkpoint {checkpoint_id} is kept already"
        memory = self._memory
        held = memory.ledger.slot(slot_id)
        floor = memory.floors[slot_id]
        cells = memory.ledger.cells(slot_id, floor, None)
        self._kept[checkpoint_id] = Checkpoint(
            inputs=held.inputs.copy(),
            positions=held.positions.copy(),
            floor=floor,
            slid=tuple(array[memory.sliding, slot_id, :, cells] for array in memory.arrays),
            states=memory.states[:, slot_id].copy(),
        )

    def restore(self, checkpoint_id: int, slot_id: int, n_pos: int) -> None:
        """Put back what a slot, cut to `n_pos` positions, held there when it was saved."""
        kept = self._of(checkpoint_id)
        memory = self._memory
        held = memory.ledger.slot(slot_id)
        assert (held.inputs, held.positions) == (kept.inputs, kept.positions), (
            f"slot {slot_id}: its first {n_pos} positions are not those of"
            f" checkpoint {checkpoint_id}, which has {len(kept.inputs)} inputs"
        )
        cells = memory.ledger.cells(slot_id, kept.floor, None)
        for array, slid in zip(memory.arrays, kept.slid, strict=True):
            array[memory.sliding, slot_id, :, cells] = slid
        memory.states[:, slot_id] = kept.states
        memory.floors[slot_id] = kept.floor

    def drop(self, checkpoint_id: int) -> None:
        """Forget a checkpoint."""
        self._of(checkpoint_id)
        del self._kept[checkpoint_id]

    def inputs(self, checkpoint_id: int) -> tuple[list[int], list[int]]:
        """Return the inputs that a checkpoint was saved after, and their positions."""
        kept = self._of(checkpoint_id)
        return kept.inputs, kept.positions

    def n_bytes(self, checkpoint_id: int) -> int:
        """Return the size of a checkpoint."""
        return self._of(checkpoint_id).n_bytes

    def _of(self, checkpoint_id: int) -> Checkpoint:
        assert checkpoint_id in self._kept, f"checkpoint {checkpoint_id} is not kept"
        return self._kept[checkpoint_id]
