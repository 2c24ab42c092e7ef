"""Edits of the cache, of checkpoints and of samplers, which a step begins with."""

from dataclasses import dataclass

from runnerd.core.sampling import Sampling


@dataclass(frozen=True, slots=True)
class KVRemove:
    """Forget the positions [p0, p1) of a slot; `p1` None: to the end."""

    slot_id: int
    p0: int
    p1: int | None = None


@dataclass(frozen=True, slots=True)
class KVShift:
    """Move the positions [p0, p1) of a slot by `delta`; `p1` None: to the end."""

    slot_id: int
    p0: int
    p1: int | None
    delta: int


@dataclass(frozen=True, slots=True)
class KVCopy:
    """Let an empty slot hold the first `n_pos` positions of another, which keeps them.

    Without `can_rewind` these are all that the other slot holds, or a restore follows.
    """

    from_slot_id: int
    slot_id: int
    n_pos: int


@dataclass(frozen=True, slots=True)
class CheckpointSave:
    """Keep a copy of what a slot, as it is now, could not get back by forgetting its end."""

    checkpoint_id: int
    slot_id: int


@dataclass(frozen=True, slots=True)
class CheckpointRestore:
    """Put a slot back to `n_pos`, where the checkpoint was saved, in this slot or in another.

    With `has_attention` the slot holds the cells up to there at least, and they are of the same
    inputs. Without, it may also be empty.
    """

    checkpoint_id: int
    slot_id: int
    n_pos: int


@dataclass(frozen=True, slots=True)
class CheckpointDrop:
    """Forget a checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SamplerOpen:
    """Make a sampler for a sequence, with the tokens that its penalties look back on."""

    seq_id: int
    sampling: Sampling
    history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplerClose:
    """Forget a sequence's sampler."""

    seq_id: int


Edit = (
    KVRemove
    | KVShift
    | KVCopy
    | CheckpointSave
    | CheckpointRestore
    | CheckpointDrop
    | SamplerOpen
    | SamplerClose
)
