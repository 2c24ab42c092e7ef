"""The reference engine: tokenizer, model, memory and samplers behind the `Engine` protocol."""

import time
from collections.abc import Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import (
    Adapters,
    Batch,
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    Edit,
    KVCopy,
    KVRemove,
    KVShift,
    Limits,
    SamplerClose,
    SamplerOpen,
)
from runnerd.core.prompt import Part, Prompt
from runnerd.engine.base import (
    ConstraintKind,
    Decoded,
    EncodedImage,
    EngineConfig,
    LoadProgress,
    ModelInfo,
    Pixels,
    Pooling,
    Vectors,
)
from runnerd.engine.memory_plan import MemoryPlan
from runnerd.engine.reference.cache import Memory
from runnerd.engine.reference.chunks import chunks_of, stored_rows
from runnerd.engine.reference.edits import Editor
from runnerd.engine.reference.embedding import POOLINGS, Embedder
from runnerd.engine.reference.encoded import check_encoded
from runnerd.engine.reference.encoder import Encoder
from runnerd.engine.reference.faults import Faults
from runnerd.engine.reference.forward import Forward
from runnerd.engine.reference.grammar import compiled
from runnerd.engine.reference.images import Tiling
from runnerd.engine.reference.limits import plan_image_rows, plan_limits
from runnerd.engine.reference.loading import Loading
from runnerd.engine.reference.model import Model
from runnerd.engine.reference.options import ReferenceOptions
from runnerd.engine.reference.pace import Pace
from runnerd.engine.reference.plan import plan_fitting
from runnerd.engine.reference.sampling import Samplers
from runnerd.engine.reference.tokenizer import (
    BOS,
    CHAT_TEMPLATE,
    END,
    END_TOKENS,
    N_VOCAB,
    ByteTokenizer,
)
from runnerd.errors import BadModel, DecodeAborted, EngineFailed, NoKVSlot

Floats = NDArray[np.float64]


class ReferenceEngine:
    """Implements `Engine`. `last_logits` are those of the rows that `decode` sampled last.

    Raises:
        BadModel: the options say that the load fails.
        ConfigError: there are fewer cells than a split cache takes, or images that do not fit.
        LoadCancelled: `progress` returned False.
        OutOfMemory: the KV cache is larger than memory.
    """

    def __init__(
        self, config: EngineConfig, options: ReferenceOptions, progress: LoadProgress
    ) -> None:
        self.faults = Faults(options)
        self._options = options
        self._pace = Pace()
        loading = Loading(options.load_ms, self._pace, progress)
        loading.phase("open")
        if options.fail_load:
            raise BadModel("reference engine: the load is to fail (fail_load=1)")
        self._limits = plan_limits(config, options)
        n_rows = plan_image_rows(config, options)
        self._tiling = Tiling(options, n_rows) if n_rows else None
        self._tokenizer = ByteTokenizer(non_causal=options.non_causal, tiling=self._tiling)
        self._model = Model(options)
        loading.phase("weights")
        self._plan = plan_fitting(config, options)
        self._memory = Memory(options, self._limits)
        self._editor = Editor(self._memory, self._limits)
        names = tuple(name for name, _ in config.adapters)
        self._forward = Forward(self._model, self._memory, names)
        self._embedder = Embedder(self._model, options, config.n_embed or config.n_ubatch)
        self._encoder = Encoder(self._model, self._tiling, options, self.faults)
        self._samplers = Samplers()
        self.model = self._described()  # once: the decode loop asks before each step
        self._is_shifting = False  # as in llama.cpp, until the next decode has begun
        self.last_logits: Floats = np.empty((0, N_VOCAB))
        loading.phase("context")
        loading.phase("warm-up")

    @property
    def memory(self) -> MemoryPlan:
        """See `Engine.memory`."""
        return self._plan

    @property
    def limits(self) -> Limits:
        """See `Engine.limits`."""
        return self._limits

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """See `Tokenizer.expand`; images are as in `images`, or named as in `media`."""
        return self._tokenizer.expand(parts, add_bos=add_bos)

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._tokenizer.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """See `Tokenizer.is_end`."""
        return self._tokenizer.is_end(token)

    def constrain(self, kind: ConstraintKind, text: str) -> object:
        """See `Engine.constrain`; grammars are as in `grammar`."""
        return compiled(kind, text)

    def apply(self, edits: Sequence[Edit]) -> None:
        """See `Engine.apply`. An edit that makes no sense is an AssertionError."""
        editor = self._editor
        for edit in edits:
            match edit:
                case KVRemove(slot_id, p0, p1):
                    editor.remove(slot_id, p0, p1)
                case KVShift(slot_id, p0, p1, delta):
                    editor.shift(slot_id, p0, p1, delta)
                    self._is_shifting = True
                case KVCopy(from_slot_id, slot_id, n_pos):
                    editor.copy(from_slot_id, slot_id, n_pos)
                case CheckpointSave(checkpoint_id, slot_id):
                    editor.save(checkpoint_id, slot_id)
                case CheckpointRestore(checkpoint_id, slot_id, n_pos):
                    editor.restore(checkpoint_id, slot_id, n_pos)
                case CheckpointDrop(checkpoint_id):
                    editor.checkpoints.drop(checkpoint_id)
                case SamplerOpen(seq_id, sampling, history):
                    self._samplers.open(seq_id, sampling, history)
                case SamplerClose(seq_id):
                    self._samplers.close(seq_id)
                case _:
                    assert_never(edit)
        editor.end()

    def use_adapters(self, adapters: Adapters) -> None:
        """See `Engine.use_adapters`. A name that is not loaded is an AssertionError."""
        self._forward.use_adapters(adapters)

    def decode(self, batch: Batch) -> Decoded:
        """See `Engine.decode`. A batch that breaks the contract is an AssertionError."""
        assert not self._pace.is_closed, "the engine is closed"
        for span in batch.spans:
            if span.media is not None:
                one_pass = self._options.non_causal
                check_encoded(batch.kind, span, self._options.dim, one_pass=one_pass)
        seq_ids = [span.seq_id for span in batch.spans if span.wants_logits]
        self._samplers.check(seq_ids)
        try:
            self.faults.before_decode()
            self._memory.ledger.find_room(batch)
        except NoKVSlot:
            self._is_shifting = False  # cells move before room is looked for
            raise
        self.last_logits = self._chunk_by_chunk(batch)
        self.last_logits[self.faults.nan_rows(seq_ids)] = np.nan
        sampled, seconds = self._samplers.sample(seq_ids, self.last_logits)
        return Decoded(tuple(sampled), tuple(seconds))

    def set_abort(self, wanted: bool, /) -> None:
        """See `Engine.set_abort`. A decode stops before its next `n_ubatch` rows."""
        self._pace.set_abort(wanted)

    def oldest(self) -> tuple[int, ...]:
        """See `Engine.oldest`."""
        return self._editor.oldest()

    def checkpoint_bytes(self, checkpoint_id: int) -> int:
        """See `Engine.checkpoint_bytes`."""
        return self._editor.checkpoints.n_bytes(checkpoint_id)

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """See `Engine.embed`."""
        return self._embedder.embed(inputs, pooling)

    def encode(self, images: Sequence[Pixels]) -> tuple[EncodedImage | EngineFailed, ...]:
        """See `Engine.encode`; `faults` and options say how long it takes, and what fails."""
        return self._encoder.encode(images)

    def close(self) -> None:
        """See `Engine.close`. A second call changes nothing; what hangs goes on."""
        self._pace.close()
        self._encoder.close()
        self.faults.release()
        self._samplers.clear()

    def _described(self) -> ModelInfo:
        """Return what is loaded. Any context length is as good as another."""
        return ModelInfo(
            name="reference",
            architecture="reference",
            n_vocab=N_VOCAB,
            n_ctx_train=self._limits.n_ctx,
            n_params=self._model.n_params,
            size_bytes=self._model.n_params * np.dtype(np.float64).itemsize,
            chat_template=CHAT_TEMPLATE,
            bos_token=BOS,
            end_tokens=END_TOKENS,
            eos_token=END,
            adapters=self._forward.names,
            n_embd=self._options.dim,
            n_embed=self._embedder.n_embed,
            poolings=POOLINGS,
            n_image_rows=self._tiling.n_inputs if self._tiling else 0,
        )

    def _chunk_by_chunk(self, batch: Batch) -> Floats:
        """Run a batch chunk by chunk; return the logits of the rows that want them."""
        started_at = time.monotonic()
        logits = []
        chunks = chunks_of(batch, self._limits.n_ubatch)
        for n_done, chunk in enumerate(chunks):
            if self._options.step_ms:
                step_s = self._options.step_ms / 1e3
                self._pace.wait_until(started_at + step_s * (n_done + 1) / len(chunks))
            if self._pace.is_aborted or self.faults.is_aborted(n_done):
                assert not self._is_shifting, "stopped while cells move: they would move twice"
                n_stored = sum(done.n_rows for done in chunks[:n_done])
                raise DecodeAborted(self._abandon(batch, chunk, n_stored))
            logits.append(self._forward.run(chunk))
        self._is_shifting = False
        return logits[0] if len(logits) == 1 else np.concatenate(logits)

    def _abandon(self, batch: Batch, chunk: Batch, n_stored: int) -> tuple[int | None, ...]:
        """Leave a chunk, as llama.cpp does, in which it had begun to change states and windows."""
        if self._limits.can_rewind:
            self._memory.forget_unstored(chunk)
            return stored_rows(batch, n_stored)
        lost = {span.slot_id for span in chunk.spans}
        for slot_id in lost:
            self._editor.remove(slot_id, 0, None)
        stored = zip(batch.spans, stored_rows(batch, n_stored), strict=True)
        return tuple(None if span.slot_id in lost else n_rows for span, n_rows in stored)
