"""What an engine is: a loaded model with a KV cache, and the one way to run a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from runnerd.core.batch import Batch, Edit, Limits, Sampled, Step, StepResult
from runnerd.core.prompt import Part, Prompt
from runnerd.errors import NoKVSlot

MAX_SLOTS = 256  # LLAMA_MAX_SEQ: llama.cpp's limit on sequences in a context

LoadProgress = Callable[[str, float], bool]
"""Told a phase (open, weights, context, warm-up) and its fraction; False stops the load."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and how large. The fields are checked by `runnerd.config`.

    `model` is a file's path, or for the reference engine its options ("layers=2,window=8").
    `n_ctx` 0: what the model was trained for, at most 4096. `n_cells` 0: `n_slots * n_ctx`.
    `n_threads` 0: one per core.
    """

    model: str
    engine: Literal["llama", "reference"] = "llama"
    n_slots: int = 4
    n_ctx: int = 0
    n_cells: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    kv: Literal["auto", "split", "unified"] = "auto"
    flash_attn: Literal["auto", "on", "off"] = "auto"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is loaded. `bos_token` None: the model wants none."""

    name: str
    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_params: int
    size_bytes: int
    chat_template: str
    bos_token: int | None
    end_tokens: tuple[int, ...]


class Tokenizer(Protocol):
    """Text to tokens and back. Safe to call from any thread, also while a step runs."""

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """Turn a request's parts into inputs and groups.

        BOS is added once, before the first part, if the model wants one and the parts do not
        begin with it. An empty prompt gives no inputs where the model has no BOS.

        Raises:
            InvalidRequest: a token id is outside the vocabulary, or text cannot be tokenized.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token of the vocabulary adds; no bytes for a control token."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        ...


class Engine(Tokenizer, Protocol):
    """A loaded model with a KV cache. `apply`, `decode`, `close`: one call at a time."""

    @property
    def limits(self) -> Limits:
        """What this engine can hold and run."""
        ...

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""
        ...

    def apply(self, edits: Sequence[Edit]) -> None:
        """Carry out edits of the KV cache and of samplers, in order."""
        ...

    def decode(self, batch: Batch) -> tuple[Sampled, ...]:
        """Run one forward pass; return a sample per span with `wants_logits`, in order.

        Raises:
            NoKVSlot: the cache is full; it is as it was before the call.
            EngineBroken: the model failed; what the cache holds is unknown.
        """
        ...

    def close(self) -> None:
        """Free the model. Nothing else may be called afterwards."""
        ...


def run_step(engine: Engine, step: Step) -> StepResult:
    """Apply a step's edits and run its batches, until one finds no room in the cache."""
    engine.apply(step.edits)
    sampled: list[Sampled] = []
    for n_done, batch in enumerate(step.batches):
        try:
            sampled.extend(engine.decode(batch))
        except NoKVSlot:
            return StepResult(n_done, tuple(sampled))
    return StepResult(len(step.batches), tuple(sampled))
