"""What an engine is: a loaded model with a KV cache, and the one way to run a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from runnerd.core.batch import (
    Adapters,
    Batch,
    CheckpointSave,
    Edit,
    Limits,
    Sampled,
    Step,
    StepResult,
)
from runnerd.core.prompt import Part, Prompt
from runnerd.errors import DecodeAborted, EngineFailed, NoKVSlot

if TYPE_CHECKING:  # it imports this module
    from runnerd.engine.memory_plan import MemoryPlan

Vectors = npt.NDArray[np.float32]

MAX_SLOTS = 256  # LLAMA_MAX_SEQ: llama.cpp's limit on sequences in a context

LoadProgress = Callable[[str, float], bool]
"""Told a phase (open, weights, projector, context, warm-up) and its fraction; False stops it."""


KVType = Literal["f16", "q8_0", "q4_0"]
"""How a KV cache stores numbers: 16 bits each, or 32 of them in a block with a common scale."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and how large. The fields are checked by `runnerd.config`.

    `model` is a file's path, or for the reference engine its options ("layers=2,window=8").
    `n_ctx` 0: what the model was trained for, at most 4096. `n_cells` 0: `n_slots * n_ctx`.
    `n_threads`, the most that a pass has; 0: one per core. `swa_full`: sliding layers keep every
    position, which takes memory and makes checkpoints unnecessary. `kv_type` other than f16: where
    there is flash attention. `adapters`: names and paths of LoRA adapters.
    `n_embed` 0: the longest input of an embedding is `n_ubatch`. The first embedding takes memory
    for so many rows, each with its logits, and a generation waits for a whole input.
    `mmproj`: the file of the projector that makes rows of images; empty: no images.
    `n_image_rows`: an image is made smaller until it has about so many (a long one may have some
    more), where the projector takes images of any size; 0: as it was trained, and at most half of
    the context.
    `n_gpu_layers`: layers on devices, the output layer counts as one; None: as many as fit.
    `devices`: ids of those that may be used, empty for none; None: all. `tensor_split`: the shares
    of the devices, in their order; empty: by what is free. `reserve_bytes` are left free on each
    but main memory.
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
    kv_type: KVType = "f16"
    swa_full: bool = False
    adapters: tuple[tuple[str, str], ...] = ()
    n_embed: int = 0
    mmproj: str = ""
    n_image_rows: int = 0
    n_gpu_layers: int | None = None
    devices: tuple[str, ...] | None = None
    tensor_split: tuple[float, ...] = ()
    reserve_bytes: int = 512 * 2**20


Pooling = Literal["model", "mean", "cls", "last"]
"""How the rows of an input become one embedding; "model": as the model was trained."""

ConstraintKind = Literal["grammar", "json_schema"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is loaded. `bos_token` and `eos_token` are what a chat template means by that.

    `can_generate` False: a model for embeddings only. `n_embed` is the longest input of an
    embedding, of `n_embd` numbers; `poolings` is empty where the model can make none. With
    `adds_bos` the model wants its BOS before every prompt. `n_image_rows` is the most inputs that
    an image takes, with its marks; 0: the model reads no images.
    """

    name: str
    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_params: int
    size_bytes: int
    chat_template: str
    bos_token: int | None
    end_tokens: tuple[int, ...]
    adapters: tuple[str, ...] = ()
    can_generate: bool = True
    n_embd: int = 0
    n_embed: int = 0
    poolings: tuple[Pooling, ...] = ()
    embed_suffix: tuple[int, ...] = ()
    eos_token: int | None = None
    adds_bos: bool = True
    n_image_rows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """An image to encode: shape (height, width, 3), red, green and blue."""

    media_id: int
    rgb: npt.NDArray[np.uint8]

    @property
    def n_pixels(self) -> int:
        """Its width times its height."""
        return self.rgb.size // 3


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImage:
    """What an image is to the model: a row for each of its inputs that is no token.

    `rows` are of shape (n_rows, n_embd), group after group. `offsets`, of shape (n_axes, n_rows),
    are how far a row's position lies behind that of the first row of its group, by axis: one, or
    with M-RoPE four (time, y, x, and one that is not used).
    """

    rows: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int32]

    @property
    def n_bytes(self) -> int:
        """The memory that it takes."""
        return self.rows.nbytes + self.offsets.nbytes


@dataclass(frozen=True, slots=True)
class Decoded:
    """The samples of a batch, in order, and the seconds that each took."""

    sampled: tuple[Sampled, ...]
    sampling_s: tuple[float, ...]


class Tokenizer(Protocol):
    """Text to tokens and back. Safe to call from any thread, also while a step runs."""

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """Turn a request's parts into inputs and groups.

        BOS is added once, before the first part, if the model wants one and the parts do not
        begin with it. An empty prompt gives no inputs where the model has no BOS. An image becomes
        groups that want to be encoded, by its size alone, and the tokens that mark them.

        Raises:
            InvalidRequest: a token id is outside the vocabulary, or text cannot be tokenized.
            InvalidMedia: an image has a shape that the model cannot take.
            Unsupported: there is an image, and the model reads none.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token of the vocabulary adds; no bytes for a control token."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        ...


class Engine(Tokenizer, Protocol):
    """A loaded model with a KV cache.

    `constrain` and `set_abort` may be called from any thread at any time; `encode` from any
    thread, one call at a time; of all other methods one at a time.
    """

    @property
    def limits(self) -> Limits:
        """What this engine can hold and run."""
        ...

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""
        ...

    @property
    def memory(self) -> "MemoryPlan":
        """What of memory the load has taken, by layer and by device."""
        ...

    def constrain(self, kind: ConstraintKind, text: str) -> object:
        """Compile a grammar (GBNF), or a JSON schema, into a `Sampling.constraint`.

        Raises:
            BadGrammar: it is malformed or too large, with the place; or there are no grammars.
        """
        ...

    def apply(self, edits: Sequence[Edit]) -> None:
        """Carry out edits of the KV cache, of checkpoints and of samplers, in order."""
        ...

    def use_adapters(self, adapters: Adapters) -> None:
        """Let decodes run with these adapters from now on."""
        ...

    def decode(self, batch: Batch) -> Decoded:
        """Run one forward pass, and sample a row per span with `wants_logits`, in order.

        Raises:
            NoKVSlot: the cache is full; it is as it was before the call.
            DecodeAborted: it was stopped; says what of the batch is stored.
            EngineBroken: the model failed; what the cache holds is unknown.
        """
        ...

    def set_abort(self, wanted: bool, /) -> None:
        """Stop the decode or embedding in progress and those to come, or let them run again.

        An engine that cannot stop one runs it to its end. One that can may also stop a decode by
        itself, to have it tried again faster.
        """
        ...

    def oldest(self) -> tuple[int, ...]:
        """Return `StepResult.oldest`."""
        ...

    def checkpoint_bytes(self, checkpoint_id: int) -> int:
        """Return the size of a checkpoint that is kept."""
        ...

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """Return an embedding per input, not normalised: shape (n_inputs, n_embd), float32.

        Each input has 1 to `n_embed` tokens, and all together have no more.

        Raises:
            DecodeAborted: it was stopped, and nothing of it is kept.
            EngineFailed: there is no memory for it, or the model failed; generations go on.
        """
        ...

    def encode(self, images: Sequence[Pixels]) -> tuple[EncodedImage | EngineFailed, ...]:
        """Make rows of images, of any sizes; where one fails, say why.

        While it runs, steps are to keep most of their pace: it shares the cores with them.
        """
        ...

    def close(self) -> None:
        """Free the model. Nothing else may be called afterwards.

        What an `encode` that has not come back uses is left to the process's end.
        """
        ...


def run_step(engine: Engine, step: Step) -> StepResult:
    """Apply a step's edits and run its batches, until one finds no room or is aborted."""
    engine.apply(step.edits)
    saved = tuple(
        (edit.checkpoint_id, engine.checkpoint_bytes(edit.checkpoint_id))
        for edit in step.edits
        if isinstance(edit, CheckpointSave)
    )
    engine.use_adapters(step.adapters)
    sampled: list[Sampled] = []
    sampling_s: list[float] = []
    n_stored: tuple[int | None, ...] | None = None
    n_done = 0
    for batch in step.batches:
        try:
            decoded = engine.decode(batch)
        except NoKVSlot:
            break
        except DecodeAborted as err:
            n_stored = err.n_stored
            break
        n_done += 1
        sampled += decoded.sampled
        sampling_s += decoded.sampling_s
    oldest = engine.oldest() if engine.limits.window else ()
    return StepResult(n_done, tuple(sampled), tuple(sampling_s), n_stored, oldest, saved)
