"""Loads the llama.cpp engine: files, weights, projector, context, and a pass of each kind."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from runnerd.core.batch import Limits
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.llama.context import KeepsNoCells, LlamaContext
from runnerd.engine.llama.embedder import Embedder
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.fatal import blamed_for_aborts
from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.kv_type import choose_kv_type
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.mmproj import check_mmproj
from runnerd.engine.llama.model import LlamaModel, Phases, load_model
from runnerd.engine.llama.shape import (
    ContextShape,
    check_kv_cache,
    kv_bytes,
    plan_shape,
    raised_to,
)
from runnerd.engine.llama.threads import share_threads
from runnerd.errors import BadModel, ConfigError, RequestError

if TYPE_CHECKING:  # to import it loads libmtmd, which only models that read images need
    from runnerd.engine.llama.projector import Projector

log = structlog.get_logger()


def load_llama(config: EngineConfig, progress: LoadProgress) -> LlamaEngine:
    """Load a GGUF file, make its context and warm it up, in the calling thread.

    Raises:
        ConfigError: a size is beyond the model's or llama.cpp's bounds.
        LoadError: the file is missing or bad, memory is short, or `progress` said stop.
    """
    phases = Phases(progress)
    phases.reach("open", 0.0)
    header = read_gguf(config.model)
    if config.mmproj:
        check_mmproj(config.mmproj)
    on_cpu = not lib.llama_supports_gpu_offload()
    config = replace(config, kv_type=choose_kv_type(config, header, on_cpu=on_cpu))
    shape = plan_shape(config, header)
    if on_cpu:  # else the cache is on the device
        check_kv_cache(shape, header)
    phases.reach("open", 1.0)
    model = load_model(config.model, header, phases, config.adapters)
    projector: Projector | None = None
    try:
        if config.mmproj:
            projector, shape = _load_projector(model, header, config, shape, phases)
        phases.reach("context", 0.0)
        engine = _make_engine(model, header, config, shape, projector)
    except BaseException:
        if projector is not None:
            projector.close()
        model.close()
        raise
    try:
        phases.reach("warm-up", 0.0)
        with blamed(config.mmproj):
            engine.warm_up(partial(phases.reach, "warm-up"))
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


@contextmanager
def blamed(mmproj: str) -> Iterator[None]:
    """Take whatever goes wrong within the block for a fault of the projector, if there is one.

    Raises:
        BadModel: what would be wrong with one image is wrong with all.
    """
    if not mmproj:
        yield
        return
    with blamed_for_aborts(mmproj):
        try:
            yield
        except (AssertionError, RequestError) as err:
            raise BadModel(f"{mmproj}: the projector does not work: {err}") from err


def _load_projector(
    model: LlamaModel,
    header: GGUFHeader,
    config: EngineConfig,
    shape: ContextShape,
    phases: Phases,
) -> "tuple[Projector, ContextShape]":
    """Load the projector; return it, and the shape with passes that its images fit in."""
    from runnerd.engine.llama.projector import load_projector

    with blamed(config.mmproj):
        n_threads = share_threads(shape.n_threads).encode
        projector = load_projector(model, config, phases, n_threads, shape.n_ctx)
    try:
        raised = raised_to(shape, projector.n_one_pass)
        projector.limit_passes(raised.n_ubatch)
        if raised != shape:
            log.info(
                "batch.raised",
                n_batch_from=shape.n_batch,
                n_batch_to=raised.n_batch,
                n_ubatch_from=shape.n_ubatch,
                n_ubatch_to=raised.n_ubatch,
            )
            if not lib.llama_supports_gpu_offload():
                check_kv_cache(raised, header)
    except BaseException:
        projector.close()
        raise
    return projector, raised


def _make_engine(
    model: LlamaModel,
    header: GGUFHeader,
    config: EngineConfig,
    shape: ContextShape,
    projector: "Projector | None",
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
        return LlamaEngine(
            model,
            context,
            embedder,
            context.limits,
            projector=projector,
            n_threads=shape.n_threads,
        )
    if projector is not None:
        raise ConfigError(f"{config.model}: makes embeddings only, and of no images: no mmproj")
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
    return LlamaEngine(model, None, embedder, limits, projector=None, n_threads=shape.n_threads)
