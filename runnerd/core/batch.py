"""One forward pass as data: cache edits, batches of spans, and the rows to sample.

A step's batches run in order. Within a step a sequence's spans are contiguous from its
`n_past`, whichever batches they lie in. All that an engine is told, and tells, is named here.

What is made anew for each row or step is a frozen struct: a frozen dataclass says the same, but
takes a microsecond to make, a tenth of all that the host does for a row.
"""

from enum import Enum
from operator import attrgetter

from msgspec import Struct

from runnerd.core.edits import (
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    Edit,
    KVCopy,
    KVRemove,
    KVShift,
    SamplerClose,
    SamplerOpen,
)
from runnerd.core.limits import (
    COPY_ROWS,
    Limits,
)
from runnerd.core.sampling import (
    Adapter,
    Adapters,
    Logprobs,
    Sampled,
    SampleFault,
    Sampling,
)

__all__ = [
    "COPY_ROWS",
    "Adapter",
    "Adapters",
    "Batch",
    "BatchKind",
    "CheckpointDrop",
    "CheckpointRestore",
    "CheckpointSave",
    "Edit",
    "KVCopy",
    "KVRemove",
    "KVShift",
    "Limits",
    "Logprobs",
    "SampleFault",
    "Sampled",
    "SamplerClose",
    "SamplerOpen",
    "Sampling",
    "Span",
    "Step",
    "StepResult",
]


class BatchKind(Enum):
    """What the rows of one native call are. llama.cpp mixes none of them."""

    TOKENS = "tokens"
    MEDIA = "media"
    MEDIA_NON_CAUSAL = "media_non_causal"


class Span(Struct, frozen=True, repr_omit_defaults=True):
    """Consecutive rows of one sequence, in one batch.

    `inputs` are token ids, or media keys (negative). `pos` is the position of the first; for
    media, that of the first row of its group. `media_id` names the medium, `row0` its first row
    here. `media` are the rows of the whole medium if they were encoded: what the engine's encoder
    gave. With `wants_logits` the last row is sampled.
    """

    seq_id: int
    slot_id: int
    pos: int
    inputs: tuple[int, ...]
    wants_logits: bool = False
    media_id: int = 0
    row0: int = 0
    media: object | None = None


_inputs_of = attrgetter("inputs")


class Batch(Struct, frozen=True):
    """Rows of one kind for one native call. Span order is row order."""

    kind: BatchKind
    spans: tuple[Span, ...]

    @property
    def n_rows(self) -> int:
        """Rows in this batch."""
        return sum(map(len, map(_inputs_of, self.spans)))

    @property
    def n_outputs(self) -> int:
        """Rows whose logits are wanted, at most one per span."""
        return sum([span.wants_logits for span in self.spans])


class Step(Struct, frozen=True):
    """One forward pass over all sequences, all with the same adapters.

    `number` counts steps from 1.
    """

    number: int
    edits: tuple[Edit, ...]
    batches: tuple[Batch, ...]
    adapters: Adapters = ()

    @property
    def n_rows(self) -> int:
        """Rows over all batches: at most `n_batch`."""
        return sum(batch.n_rows for batch in self.batches)


class StepResult(Struct, frozen=True):
    """What an engine did of a step: the batches that ran, and a sample per wanted row.

    `n_batches` less than the step's: the next one found no room in the KV cache, or it was
    aborted; then `n_stored` says how many rows of each of its spans are stored (from the span's
    first row on; of a group in one pass all or none), or None for a span whose slot now holds
    nothing at all. Nothing is sampled from them.

    `sampling_s` is the time that each sample took. `oldest`, with a `Limits.window`: the first
    position of each slot that the sliding layers still hold, -1 of an empty one. `saved` are the
    checkpoints that the step made, with their sizes in bytes.
    """

    n_batches: int
    sampled: tuple[Sampled, ...]
    sampling_s: tuple[float, ...] = ()
    n_stored: tuple[int | None, ...] | None = None
    oldest: tuple[int, ...] = ()
    saved: tuple[tuple[int, int], ...] = ()

    @property
    def is_aborted(self) -> bool:
        """Whether the step was stopped before its end."""
        return self.n_stored is not None
