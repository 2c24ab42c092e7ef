"""One forward pass as data: cache edits, batches of spans, and the rows to sample.

A step's batches run in order. Within a step a sequence's spans are contiguous from its
`n_past`, whichever batches they lie in.
"""

from dataclasses import dataclass
from enum import Enum

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
    In both cases a slot goes back by a checkpoint, or starts again.
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

    @property
    def needs_checkpoints(self) -> bool:
        """Whether going back in a slot takes more than forgetting its end."""
        return self.window > 0 or not self.can_rewind


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that was named at load, and how much of it to apply."""

    name: str
    scale: float = 1.0


Adapters = tuple[Adapter, ...]
"""What a request runs with: by name, no name twice, no scale of 0. Part of the cache key."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to pick the next token; fields as in the wire's `Generate`, off by default.

    `n_logprobs` None: log-probabilities are not wanted; 0: only that of the token picked.
    `logit_bias` holds a token at most once; -inf bans it. `ignore_end` bans the end tokens, but
    where a constraint leaves nothing else.
    `constraint` is what `Engine.constrain` gave for a grammar.
    """

    temperature: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = 1024
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_end: bool = False
    seed: int = 0
    n_logprobs: int | None = None
    constraint: object | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the choice by repetition penalties."""
        return self.penalty_last_n > 0 and (
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def n_history(self) -> int:
        """How many earlier tokens change the choice."""
        n_penalties = self.penalty_last_n if self.has_penalties else 0
        return max(n_penalties, self.dry_last_n if self.dry_multiplier > 0.0 else 0)


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

    Where layers with full attention exist, the slot holds their cells up to there at least, and
    they are of the same inputs.
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


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A row's logits gave no token (NaN, or nothing left to choose from)."""

    message: str


@dataclass(frozen=True, slots=True)
class Logprobs:
    """A token picked, with log-probabilities (nats) of the raw distribution.

    `top` are the likeliest tokens, descending.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


Sampled = int | Logprobs | SampleFault
"""A token; with its log-probabilities, if they are wanted; or why there is none."""


@dataclass(frozen=True, slots=True)
class StepResult:
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
        """Whether the step was stopped on demand."""
        return self.n_stored is not None
