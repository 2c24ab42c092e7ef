"""One forward pass as data: cache edits, batches of spans, and the rows to sample.

A step's batches run in order. Within a step a sequence's spans are contiguous from its
`n_past`, whichever batches they lie in.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold and run.

    `n_ctx` inputs per slot; `n_cells` inputs over all slots, at most `n_slots * n_ctx`;
    `n_batch` rows per step; `n_ubatch` rows in a batch that is not causal.
    """

    n_slots: int
    n_ctx: int
    n_cells: int
    n_batch: int
    n_ubatch: int
    can_shift: bool = True


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to pick the next token; fields as in the wire's `Generate`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    seed: int = 0

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the choice."""
        return self.penalty_last_n > 0 and (
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )


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
class SamplerOpen:
    """Make a sampler for a sequence, with the tokens that its penalties look back on."""

    seq_id: int
    sampling: Sampling
    history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplerClose:
    """Forget a sequence's sampler."""

    seq_id: int


Edit = KVRemove | KVShift | SamplerOpen | SamplerClose


class BatchKind(Enum):
    """What the rows of one native call are. llama.cpp mixes none of them."""

    TOKENS = "tokens"
    MEDIA = "media"
    MEDIA_NON_CAUSAL = "media_non_causal"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence, in one batch.

    `inputs` are token ids, or media keys (negative). `pos` is the position of the first; for
    media, that of the medium's row 0. `media_id` names the embedding, `row0` its first row here.
    With `wants_logits` the last row is sampled.
    """

    seq_id: int
    slot_id: int
    pos: int
    inputs: tuple[int, ...]
    wants_logits: bool = False
    media_id: int = 0
    row0: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one kind for one native call. Span order is row order."""

    kind: BatchKind
    spans: tuple[Span, ...]

    @property
    def n_rows(self) -> int:
        """Rows in this batch."""
        return sum(len(span.inputs) for span in self.spans)

    @property
    def n_outputs(self) -> int:
        """Rows whose logits are wanted, at most one per span."""
        return sum(span.wants_logits for span in self.spans)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over all sequences. `number` counts steps from 1."""

    number: int
    edits: tuple[Edit, ...]
    batches: tuple[Batch, ...]

    @property
    def n_rows(self) -> int:
        """Rows over all batches: at most `n_batch`."""
        return sum(batch.n_rows for batch in self.batches)


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A row's logits gave no token (NaN, or nothing left to choose from)."""

    message: str


Sampled = int | SampleFault


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an engine did of a step: the batches that ran, and a sample per wanted row.

    `n_batches` less than the step's: the next one found no room in the KV cache.
    """

    n_batches: int
    sampled: tuple[Sampled, ...]
