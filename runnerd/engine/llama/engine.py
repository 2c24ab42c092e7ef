"""The llama.cpp engine: a model, its context and its samplers behind `Engine`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import assert_never

import structlog

from runnerd.core.batch import (
    Adapters,
    Batch,
    BatchKind,
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
    EngineConfig,
    LoadProgress,
    Pooling,
    Vectors,
)
from runnerd.engine.llama.context import KeepsNoCells, LlamaContext
from runnerd.engine.llama.embedder import Embedder
from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.grammar import GrammarCompiler
from runnerd.engine.llama.kv_type import choose_kv_type
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.model import LlamaModel, Phases, load_model
from runnerd.engine.llama.sampler import Samplers
from runnerd.engine.llama.shape import ContextShape, check_kv_cache, kv_bytes, plan_shape
from runnerd.errors import BadModel

log = structlog.get_logger()


class LlamaEngine:
    """A model run by llama.cpp; see `Engine` for what each method promises.

    One without a context makes embeddings only.
    """

    def __init__(
        self,
        model: LlamaModel,
        context: LlamaContext | None,
        embedder: Embedder,
        limits: Limits,
    ) -> None:
        self.limits = limits
        self.model = replace(embedder.describe(model.description), can_generate=context is not None)
        self._model = model
        self._generating = context
        self._embedder = embedder
        self._vocabulary = model.vocabulary
        n_vocab, vocab = model.vocabulary.n_tokens, lib.llama_model_get_vocab(model.handle)
        self._samplers = Samplers(n_vocab, model.vocabulary.end_tokens, vocab)
        self._grammars = GrammarCompiler(vocab, n_vocab)
        self._is_open = True

    @property
    def _context(self) -> LlamaContext:
        assert self._generating is not None, "the model makes embeddings only"
        return self._generating

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """Turn a request's parts into inputs."""
        return self._vocabulary.expand(parts, add_bos=add_bos)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        return self._vocabulary.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return self._vocabulary.is_end(token)

    def apply(self, edits: Sequence[Edit]) -> None:
        """Carry out edits, in order."""
        for edit in edits:
            match edit:
                case KVRemove(slot_id, p0, p1):
                    self._context.cells.remove(slot_id, p0, p1)
                case KVShift(slot_id, p0, p1, delta):
                    self._context.cells.shift(slot_id, p0, p1, delta)
                case SamplerOpen(seq_id, sampling, history):
                    self._samplers.open(seq_id, sampling, history)
                case SamplerClose(seq_id):
                    self._samplers.close(seq_id)
                case KVCopy(from_slot_id, slot_id, n_pos):
                    self._context.cells.copy(from_slot_id, slot_id, n_pos)
                case CheckpointSave(checkpoint_id, slot_id):
                    self._context.cells.checkpoints.save(checkpoint_id, slot_id)
                case CheckpointRestore(checkpoint_id, slot_id, n_pos):
                    self._context.cells.restore(checkpoint_id, slot_id, n_pos)
                case CheckpointDrop(checkpoint_id):
                    self._context.cells.checkpoints.drop(checkpoint_id)
                case _:
                    assert_never(edit)

    def decode(self, batch: Batch) -> Decoded:
        """Run one forward pass and sample; see `Engine.decode`."""
        assert batch.kind is BatchKind.TOKENS, "expand makes no groups, so there is no media"
        rows = self._context.decode(batch.spans)
        wanted = [span.seq_id for span in batch.spans if span.wants_logits]
        return self._samplers.sample(wanted, rows)

    def constrain(self, kind: ConstraintKind, text: str) -> object:
        """See `Engine.constrain`."""
        return self._grammars.compile(kind, text)

    def use_adapters(self, adapters: Adapters) -> None:
        """See `Engine.use_adapters`."""
        self._context.use_adapters(adapters)

    def set_abort(self, wanted: bool, /) -> None:
        """See `Engine.set_abort`."""
        self._embedder.abort.set(wanted)
        if self._generating is not None:
            self._generating.abort.set(wanted)

    def oldest(self) -> tuple[int, ...]:
        """See `Engine.oldest`."""
        return self._context.cells.oldest()

    def checkpoint_bytes(self, checkpoint_id: int) -> int:
        """See `Engine.checkpoint_bytes`."""
        return self._context.cells.checkpoints.n_bytes(checkpoint_id)

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """See `Engine.embed`."""
        return self._embedder.embed(inputs, pooling)

    def warm_up(self) -> None:
        """Run what every daemon meets first, and see that it runs."""
        token = self.model.bos_token or 0
        if self._generating is not None:
            self._generating.warm_up(token)
        else:
            self._embedder.embed([[token]], self.model.poolings[0])

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._samplers.close_all()
            self._embedder.close()
            if self._generating is not None:
                self._generating.close()
            self._model.close()


def load_llama(config: EngineConfig, progress: LoadProgress) -> LlamaEngine:
    """Load a GGUF file, make its context and warm it up, in the calling thread.

    Raises:
        ConfigError: a size is beyond the model's or llama.cpp's bounds.
        LoadError: the file is missing or bad, memory is short, or `progress` said stop.
    """
    phases = Phases(progress)
    phases.reach("open", 0.0)
    header = read_gguf(config.model)
    on_cpu = not lib.llama_supports_gpu_offload()
    config = replace(config, kv_type=choose_kv_type(config, header, on_cpu=on_cpu))
    shape = plan_shape(config, header)
    if on_cpu:  # else the cache is on the device
        check_kv_cache(shape, header)
    phases.reach("open", 1.0)
    model = load_model(config.model, header, phases, config.adapters)
    try:
        phases.reach("context", 0.0)
        engine = _make_engine(model, header, config, shape)
    except BaseException:
        model.close()
        raise
    try:
        phases.reach("warm-up", 0.0)
        engine.warm_up()
        phases.reach("warm-up", 1.0)
    except BaseException:
        engine.close()
        raise
    log.info(
        "llama.loaded",
        n_threads=shape.n_threads,
        kv="unified" if shape.unified else "split",
        kv_type=shape.kv_type,
        n_cells=shape.n_cells,
        system_info=lib.llama_print_system_info().decode().strip(),
    )
    return engine


def _make_engine(
    model: LlamaModel, header: GGUFHeader, config: EngineConfig, shape: ContextShape
) -> LlamaEngine:
    """Make the context for generation, if the model can generate, and put all together.

    Raises:
        LoadError: there is no memory for the context, or no use for the model.
    """
    context: LlamaContext | None = None
    with suppress(KeepsNoCells):
        context = LlamaContext(model, shape, config, kv_bytes(shape, header))
    is_encoder = context is None
    embedder = Embedder(model, header, config, n_threads=shape.n_threads, is_encoder=is_encoder)
    if context is not None:
        return LlamaEngine(model, context, embedder, context.limits)
    if not embedder.describe(model.description).poolings:
        raise BadModel(f"{config.model}: neither generates text nor makes embeddings")
    limits = Limits(
        n_slots=shape.n_slots,
        n_ctx=shape.n_ctx,
        n_cells=shape.n_cells,
        n_batch=shape.n_batch,
        n_ubatch=shape.n_ubatch,
        can_shift=False,
    )
    return LlamaEngine(model, None, embedder, limits)
