"""The llama.cpp engine: a model, its context and its samplers behind `Engine`."""

from collections.abc import Sequence
from typing import assert_never

import structlog

from runnerd.core.batch import (
    Batch,
    BatchKind,
    Edit,
    KVRemove,
    KVShift,
    Limits,
    Sampled,
    SamplerClose,
    SamplerOpen,
)
from runnerd.core.prompt import Part, Prompt
from runnerd.engine.base import EngineConfig, LoadProgress, ModelInfo
from runnerd.engine.llama.context import LlamaContext
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.model import LlamaModel, Phases, load_model
from runnerd.engine.llama.sampler import Samplers
from runnerd.engine.llama.shape import check_kv_cache, kv_bytes, plan_shape

log = structlog.get_logger()


class LlamaEngine:
    """A model run by llama.cpp; see `Engine` for what each method promises."""

    def __init__(self, model: LlamaModel, context: LlamaContext) -> None:
        self._model = model
        self._context = context
        self._vocabulary = model.vocabulary
        self._samplers = Samplers(model.vocabulary.n_tokens)
        self._is_open = True

    @property
    def limits(self) -> Limits:
        """What this engine can hold and run."""
        return self._context.limits

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""
        return self._model.description

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
                    self._context.remove(slot_id, p0, p1)
                case KVShift(slot_id, p0, p1, delta):
                    self._context.shift(slot_id, p0, p1, delta)
                case SamplerOpen(seq_id, sampling, history):
                    self._samplers.open(seq_id, sampling, history)
                case SamplerClose(seq_id):
                    self._samplers.close(seq_id)
                case _:
                    assert_never(edit)

    def decode(self, batch: Batch) -> tuple[Sampled, ...]:
        """Run one forward pass and sample; raises NoKVSlot and EngineBroken."""
        assert batch.kind is BatchKind.TOKENS, "expand makes no groups, so there is no media"
        rows = self._context.decode(batch.spans)
        wanted = [span.seq_id for span in batch.spans if span.wants_logits]
        return self._samplers.sample(wanted, rows)

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._samplers.close_all()
            self._context.close()
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
    shape = plan_shape(config, header)
    if not lib.llama_supports_gpu_offload():  # else the cache is on the device
        check_kv_cache(shape, header)
    phases.reach("open", 1.0)
    model = load_model(config.model, header, phases)
    try:
        phases.reach("context", 0.0)
        context = LlamaContext(model, shape, config, kv_bytes(shape, header))
    except BaseException:
        model.close()
        raise
    engine = LlamaEngine(model, context)
    try:
        phases.reach("warm-up", 0.0)
        context.warm_up(model.description.bos_token or 0)
        phases.reach("warm-up", 1.0)
    except BaseException:
        engine.close()
        raise
    log.info(
        "llama.loaded",
        n_threads=shape.n_threads,
        kv="unified" if shape.unified else "split",
        n_cells=shape.n_cells,
        system_info=lib.llama_print_system_info().decode().strip(),
    )
    return engine
