"""Checkpoints: what a slot could not get back by forgetting its end, copied to main memory.

Of layers with a sliding window that is the window, of recurrent ones their state; the cells of
full attention are not in it. Nothing is stored of what was sampled: after a restore at least
one row has to run before there are logits again.
"""

import ctypes

import numpy as np
import numpy.typing as npt

from runnerd.engine.llama.library import lib, quiet_load
from runnerd.errors import EngineBroken

State = npt.NDArray[np.uint8]

_UINT8_P = ctypes.POINTER(ctypes.c_uint8)


class Checkpoints:
    """The checkpoints of a context, by id."""

    def __init__(self, context: int) -> None:
        self._context = context
        self._kept: dict[int, State] = {}

    def save(self, checkpoint_id: int, slot_id: int) -> None:
        """Keep the state of a slot as it is now."""
        assert checkpoint_id not in self._kept, f"checkpoint {checkpoint_id} is kept already"
        self._kept[checkpoint_id] = read_state(self._context, slot_id)

    def restore(self, checkpoint_id: int, slot_id: int) -> None:
        """Give the state back to a slot, in place of its own."""
        write_state(self._context, slot_id, self._kept[checkpoint_id])

    def drop(self, checkpoint_id: int) -> None:
        """Forget a checkpoint."""
        del self._kept[checkpoint_id]

    def n_bytes(self, checkpoint_id: int) -> int:
        """Return the size of a checkpoint."""
        return self._kept[checkpoint_id].nbytes


def read_state(context: int, slot_id: int, *, whole: bool = False) -> State:
    """Copy the windows and the recurrent state of a slot; with `whole` all that it holds."""
    flags = 0 if whole else lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    n_bytes: int = lib.llama_state_seq_get_size_ext(context, slot_id, flags)
    state = np.empty(n_bytes, np.uint8)
    pointer = state.ctypes.data_as(_UINT8_P)
    n_read: int = lib.llama_state_seq_get_data_ext(context, pointer, n_bytes, slot_id, flags)
    if n_read != n_bytes:
        raise EngineBroken(f"slot {slot_id}: {n_read} bytes of a state of {n_bytes} were read")
    return state


def write_state(context: int, slot_id: int, state: State, *, whole: bool = False) -> None:
    """Put what `read_state` has copied into a slot, in place of its own."""
    flags = 0 if whole else lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    pointer = state.ctypes.data_as(_UINT8_P)
    with quiet_load() as errors:  # each restore has a debug line
        n_written: int = lib.llama_state_seq_set_data_ext(
            context, pointer, state.nbytes, slot_id, flags
        )
    if n_written != state.nbytes:
        raise EngineBroken(f"slot {slot_id}: its state was not restored: {'; '.join(errors)}")
