"""The cells of a context, slot by slot: which positions are stored, and edits of them.

llama.cpp calls a slot's number `seq_id`. `n_past` is always one more than the last position
that llama.cpp stores, except behind an image that takes fewer positions than rows (M-RoPE): all
its rows are stored at the first one. There it is kept here. Every bound whose breach ends the
process is checked before a call.
"""

import ctypes
from collections.abc import Collection, Sequence

import numpy as np

from runnerd.core.batch import Limits, Span
from runnerd.engine.llama.checkpoints import Checkpoints, read_state, write_state
from runnerd.engine.llama.library import NO_ROOM, lib, muted
from runnerd.engine.llama.media_rows import first_position
from runnerd.errors import EngineBroken


class SlotCells:
    """What the slots of a context hold. One call at a time.

    `is_shifting`: the next decode begins with moving what was shifted. `has_axes`: a position is
    more than one number (M-RoPE).
    """

    def __init__(
        self, context: int, memory: int, limits: Limits, *, has_axes: bool = False
    ) -> None:
        self._context = context
        self._memory = memory
        self._limits = limits
        self._has_axes = has_axes
        self.n_past = [0] * limits.n_slots
        self.is_shifting = False
        self.checkpoints = Checkpoints(context)

    def clear(self) -> None:
        """Forget every slot."""
        lib.llama_memory_clear(self._memory, False)
        self.n_past = [0] * self._limits.n_slots

    def remove(self, slot_id: int, p0: int, p1: int | None) -> None:
        """Forget the positions [p0, p1) of a slot."""
        self._check_slot(slot_id)
        if not lib.llama_memory_seq_rm(self._memory, slot_id, p0, _end(p1)):
            raise EngineBroken(f"slot {slot_id} cannot forget the positions [{p0}, {p1})")
        n_past = self.n_past[slot_id]
        self._read_n_past(slot_id, p0 if p1 is None and p0 < n_past else n_past)

    def shift(self, slot_id: int, p0: int, p1: int | None, delta: int) -> None:
        """Move the positions [p0, p1) of a slot."""
        self._check_slot(slot_id)
        assert self._limits.can_shift, "this model's positions cannot be shifted"
        lib.llama_memory_seq_add(self._memory, slot_id, p0, _end(p1), delta)
        self.is_shifting = True
        self._read_n_past(slot_id, 0)

    def copy(self, from_slot_id: int, slot_id: int, n_pos: int) -> None:
        """Let an empty slot hold the first `n_pos` positions of another.

        Where the state cannot go back, and slots are apart, these are all positions until a
        checkpoint is restored.
        """
        self._check_slot(from_slot_id)
        self._check_slot(slot_id)
        n_past = self.n_past[from_slot_id]
        assert 0 <= n_pos <= n_past, f"{n_pos} positions, slot {from_slot_id} has {n_past}"
        assert self.n_past[slot_id] == 0, f"slot {slot_id} is not empty"
        if n_pos == 0:
            return
        if self._limits.is_unified:
            lib.llama_memory_seq_cp(self._memory, from_slot_id, slot_id, 0, n_pos)
            if self._limits.window:
                self._own_window(slot_id)
        else:
            # A part of a stream cannot be copied, the process would end.
            lib.llama_memory_seq_cp(self._memory, from_slot_id, slot_id, -1, -1)
            if self._limits.window:
                self._finish_copy(from_slot_id, slot_id)
            if n_pos < n_past and self._limits.can_rewind:
                lib.llama_memory_seq_rm(self._memory, slot_id, n_pos, -1)
                n_past = n_pos
        self._read_n_past(slot_id, n_pos if self._limits.is_unified else n_past)

    def restore(self, checkpoint_id: int, slot_id: int, n_pos: int) -> None:
        """Put a slot back to `n_pos`, where the checkpoint was saved."""
        self._check_slot(slot_id)
        # In this order: recurrent layers forget nothing that lies before their state.
        self.checkpoints.restore(checkpoint_id, slot_id)
        self.remove(slot_id, n_pos, None)
        self._read_n_past(slot_id, n_pos)
        if self.n_past[slot_id] != n_pos:
            raise EngineBroken(f"slot {slot_id} is at {self.n_past[slot_id]} instead of {n_pos}")

    def scrub(self, slot_ids: Collection[int]) -> None:
        """Empty slots whose cells hold what is no number, and overwrite those cells.

        A pass multiplies what it masks by 0, and a NaN stays one: it would be in whatever comes
        next in the slot, and where slots are not apart in what everybody else says. There it may
        come from any of them, and all are emptied.
        """
        if self._limits.is_unified:
            lib.llama_memory_clear(self._memory, True)
            self.n_past = [0] * self._limits.n_slots
            return
        others = [slot for slot in range(self._limits.n_slots) if slot not in slot_ids]
        if others and self._limits.can_rewind:
            for slot_id in slot_ids:
                # Takes all cells of a stream along, also those that nobody holds.
                lib.llama_memory_seq_cp(self._memory, others[0], slot_id, -1, -1)
                if self._limits.window:
                    self._finish_copy(others[0], slot_id)
                self.remove(slot_id, 0, None)
            return
        held = [slot for slot in others if self.n_past[slot]]
        states = [read_state(self._context, slot, whole=True) for slot in held]
        lib.llama_memory_clear(self._memory, True)
        for slot, state in zip(held, states, strict=True):
            write_state(self._context, slot, state, whole=True)
        for slot_id in slot_ids:
            self.n_past[slot_id] = 0

    def oldest(self) -> tuple[int, ...]:
        """Return the first position that the sliding layers hold of each slot, -1 if none."""
        first = lib.llama_memory_seq_pos_min
        return tuple(first(self._memory, slot_id) for slot_id in range(self._limits.n_slots))

    def held(self) -> tuple[tuple[int, int], ...]:
        """Return the first and the last position that llama.cpp has of each slot, -1 if none."""
        last = lib.llama_memory_seq_pos_max
        firsts = enumerate(self.oldest())
        return tuple((first, last(self._memory, slot_id)) for slot_id, first in firsts)

    def take_stock(self, spans: Sequence[Span]) -> tuple[int | None, ...]:
        """Find out what is stored of a batch that was stopped, as `StepResult.n_stored` says.

        A recurrent state may have gone further than its positions tell: such slots are emptied.
        """
        for slot_id in {span.slot_id for span in spans}:
            if self._limits.can_rewind:
                last: int = lib.llama_memory_seq_pos_max(self._memory, slot_id)
                self._read_n_past(slot_id, max(self.n_past[slot_id], last + 1))
            else:
                self.remove(slot_id, 0, None)
        return tuple(map(self._n_stored, spans))

    def _n_stored(self, span: Span) -> int | None:
        if not self._limits.can_rewind:
            return None
        n_stored = self.n_past[span.slot_id] - first_position(span)
        return min(max(n_stored, 0), len(span.inputs))

    def _own_window(self, slot_id: int) -> None:
        """Give a slot cells of its own for its window.

        Cells of sliding layers that two slots share are not taken back when they fall behind the
        window of both: the cells counted for a window each would not be enough.
        """
        write_state(self._context, slot_id, read_state(self._context, slot_id))

    def _finish_copy(self, from_slot_id: int, slot_id: int) -> None:
        """Have the stream's cells copied now, for a checkpoint to be taken or restored.

        llama.cpp copies at the beginning of the next decode, over what was restored before it.
        A row of two slots that are apart is refused, after that, and leaves no trace.
        """
        row = np.array([from_slot_id, slot_id, self.n_past[from_slot_id], 0, 2], np.int32)
        at, int32 = row.ctypes.data, ctypes.POINTER(ctypes.c_int32)
        seq_ids = (int32 * 1)(ctypes.cast(at, int32))
        batch = lib.llama_batch(
            n_tokens=1,
            seq_id=seq_ids,
            pos=ctypes.cast(at + 8, int32),
            token=ctypes.cast(at + 12, int32),
            n_seq_id=ctypes.cast(at + 16, int32),
            logits=ctypes.cast(at + 12, ctypes.POINTER(ctypes.c_int8)),
        )
        with muted():
            code: int = lib.llama_decode(self._context, batch)
        if code != NO_ROOM:
            raise EngineBroken(f"slot {from_slot_id} was not copied, llama_decode gave {code}")

    def _read_n_past(self, slot_id: int, known: int) -> None:
        """Ask llama.cpp what is stored, where that tells; else it is what is known."""
        last: int = lib.llama_memory_seq_pos_max(self._memory, slot_id)
        self.n_past[slot_id] = known if self._has_axes else last + 1

    def _check_slot(self, slot_id: int) -> None:
        assert 0 <= slot_id < self._limits.n_slots, f"slot {slot_id} of {self._limits.n_slots}"


def _end(p1: int | None) -> int:
    return -1 if p1 is None else p1
