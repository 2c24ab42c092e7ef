"""Loads the llama.cpp engine: files, weights, projector, context, and a pass of each kind."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from runnerd.core.batch import Limits
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.llama.context import KeepsNoCells, LlamaContext
from runnerd.engine.llama.devices import find_devices
from runnerd.engine.llama.embedder import Embedder
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.fitting_projector import blamed, load_fitting_projector
from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.gguf_parts import joined, read_parts
from runnerd.engine.llama.host_memory import GRAPH_BYTES, STACK_BYTES, heap_bytes
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.load_memory import check_room, reported
from runnerd.engine.llama.mmproj import check_mmproj
from runnerd.engine.llama.model import LlamaModel, load_model
from runnerd.engine.llama.phases import Phases
from runnerd.engine.llama.plan import memory_of_load
from runnerd.engine.llama.plan_projector import projector_bytes_of
from runnerd.engine.llama.probe_log import LoadSizes, read_sizes
from runnerd.engine.llama.read_ahead import read_ahead
from runnerd.engine.llama.settle import load_on_devices
from runnerd.engine.llama.shape import (
    ContextShape,
    check_kv_cache,
    kv_bytes,
    plan_shape,
)
from runnerd.engine.llama.threads import Team
from runnerd.engine.llama.wide_pass import share_with_all_kinds
from runnerd.engine.memory import available_bytes
from runnerd.engine.memory_plan import MemoryPlan
from runnerd.engine.placement import Placement
from runnerd.errors import BadModel, ConfigError

if TYPE_CHECKING:  # to import it loads libmtmd, which only models that read images need
    from runnerd.engine.llama.projector import Projector

READ_SHARE = 0.5  # of phase "weights": from a disk to read takes longer, from its cache to map

log = structlog.get_logger()


def load_llama(config: EngineConfig, progress: LoadProgress) -> LlamaEngine:
    """Load a GGUF file, make its context and warm it up, in the calling thread.

    Raises:
        ConfigError: a size is beyond the model's or llama.cpp's bounds.
        LoadError: the file is missing or bad, memory is short, or `progress` said stop.
    """
    phases = Phases(progress)
    phases.reach("open", 0.0)
    parts = read_parts(config.model, read_gguf(config.model))
    files = [(path, part.size_bytes) for path, part in parts.items()]
    header = joined(parts)
    projector_bytes = 0
    if config.mmproj:
        projector_bytes = projector_bytes_of(check_mmproj(config.mmproj))

    def load_once(config: EngineConfig, placement: Placement) -> LlamaEngine:
        return load_placed(config, header, phases, placement, files, projector_bytes)

    devices = find_devices(config.devices)
    return load_on_devices(config, header, devices, load_once, projector_bytes)


def load_placed(
    config: EngineConfig,
    header: GGUFHeader,
    phases: Phases,
    placement: Placement,
    files: Sequence[tuple[str, int]] = (),
    projector_bytes: int = 0,
) -> LlamaEngine:
    """Load with layers on devices as placed; nothing is left where that fails.

    `files` are read ahead: see `read_ahead`.
    """
    shape = plan_shape(config, header)
    free_bytes, n_heap = available_bytes(), heap_bytes()
    grown_bytes = 0

    def plan(said: Sequence[str] = (), sizes: LoadSizes | None = None) -> MemoryPlan:
        n_copied = (sizes or read_sizes(said)).copied_bytes
        return memory_of_load(
            config,
            header,
            shape,
            said,
            placement,
            vocabulary_bytes=max(0, grown_bytes - n_copied),
            projector_bytes=projector_bytes,
            free_bytes=free_bytes,
        )

    with reported("weights", plan):
        if not placement.devices:  # else the cache is on them
            check_kv_cache(shape, header)
        phases.reach("open", 1.0)
        phases.reach("weights", 0.0)
        is_read = read_ahead(files, lambda share: phases.reach("weights", share * READ_SHARE))
        begin = READ_SHARE if is_read else 0.0
        model = load_model(config.model, header, phases, config.adapters, placement, begin)
    grown_bytes = heap_bytes() - n_heap
    projector: Projector | None = None
    try:
        if config.mmproj:
            with reported("projector", partial(plan, model.said)):
                projector, shape = load_fitting_projector(model, header, config, shape, phases)
        phases.reach("context", 0.0)
        with reported("context", partial(plan, model.said)):
            if not placement.devices:
                check_room((kv_bytes(shape, header) or 0) + GRAPH_BYTES, "a context")
            context = _make_context(model, header, config, shape)
        said = [*model.said, *(context.said if context is not None else ())]
        sizes = read_sizes(said)
        memory = plan(said, sizes)
        share = share_with_all_kinds(header, sizes)
        engine = _make_engine(model, context, header, config, shape, projector, memory, share)
        phases.reach("context", 1.0)
    except BaseException:
        if projector is not None:
            projector.close()
        model.close()
        raise
    try:
        phases.reach("warm-up", 0.0)
        started_at = monotonic()
        with reported("warm-up", lambda: memory), blamed(config.mmproj):
            check_room(shape.n_threads * STACK_BYTES, "threads")
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
        flash_attn=config.flash_attn,
        n_cells=shape.n_cells,
        needed_bytes=memory.needed_bytes,
        warm_up_ms=round((monotonic() - started_at) * 1e3, 1),
        n_gpu_layers=model.n_gpu_layers,
        n_gpu_layers_placed=placement.n_gpu_layers,
        system_info=lib.llama_print_system_info().decode().strip(),
    )
    return engine


def _make_context(
    model: LlamaModel, header: GGUFHeader, config: EngineConfig, shape: ContextShape
) -> LlamaContext | None:
    """Make the context for generation, if the model can generate."""
    with suppress(KeepsNoCells):
        return LlamaContext(model, shape, config, kv_bytes(shape, header))
    return None


def _make_engine(
    model: LlamaModel,
    context: LlamaContext | None,
    header: GGUFHeader,
    config: EngineConfig,
    shape: ContextShape,
    projector: "Projector | None",
    memory: MemoryPlan,
    share: float,
) -> LlamaEngine:
    """Put all together; without a context the model is to make embeddings.

    Raises:
        LoadError: there is no use for the model.
    """
    on_cpu = not model.placement.devices
    team = Team(shape.n_threads, projector, adapts=on_cpu)
    embedder = Embedder(model, header, config, team, is_encoder=context is None)
    if context is not None:
        return LlamaEngine(
            model,
            context,
            embedder,
            context.limits,
            projector=projector,
            team=team,
            memory=memory,
            wide_share=share,
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
    return LlamaEngine(
        model,
        None,
        embedder,
        limits,
        projector=None,
        team=team,
        memory=memory,
    )
