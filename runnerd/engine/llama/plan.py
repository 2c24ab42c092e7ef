"""What a model takes of each device: planned without allocating it, or as it was loaded.

Without devices a plan takes one pretended load; with some, one that tells sizes and one with the
layers placed. Buffers are counted whole: a context that was never full has not touched them all.

Not planned: passes that a load makes larger for images whose rows must share one, and what a first
embedding takes.
"""

from collections.abc import Sequence
from dataclasses import replace

from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.adapters import check_adapter
from runnerd.engine.llama.devices import find_devices
from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.gguf_parts import with_all_parts
from runnerd.engine.llama.host_memory import attention_work_bytes, host_bytes
from runnerd.engine.llama.kv_type import choose_kv_type, may_have_flash_attention
from runnerd.engine.llama.mmproj import check_mmproj
from runnerd.engine.llama.on_cpu import settled_on_cpu
from runnerd.engine.llama.plan_build import Extras, make_plan
from runnerd.engine.llama.plan_fit import largest_n_ctx
from runnerd.engine.llama.plan_layers import n_vocab_of
from runnerd.engine.llama.plan_projector import projector_bytes_of
from runnerd.engine.llama.probe import probing
from runnerd.engine.llama.probe_log import read_sizes
from runnerd.engine.llama.processor import cpu_vendor
from runnerd.engine.llama.repack import repacked
from runnerd.engine.llama.settle import check_no_devices, settle
from runnerd.engine.llama.shape import ContextShape, plan_shape
from runnerd.engine.main_memory import main_memory
from runnerd.engine.memory import available_bytes
from runnerd.engine.memory_plan import MemoryPlan
from runnerd.engine.placement import MAIN_MEMORY, Placement, place


def plan_llama(config: EngineConfig) -> MemoryPlan:
    """Plan the load of a GGUF file, as it would be done now.

    Raises:
        ConfigError: a device or a size is not possible.
        LoadError: the file is missing or bad.
    """
    header = with_all_parts(config.model, read_gguf(config.model))
    projector_bytes = projector_bytes_of(check_mmproj(config.mmproj)) if config.mmproj else 0
    adapters = [check_adapter(name, path, header) for name, path in config.adapters]
    beside = Extras(main_memory(), sum(each.size_bytes for each in adapters), projector_bytes)
    devices = find_devices(config.devices)
    if not devices:
        check_no_devices(config)
        config = settled_on_cpu(config, header, available_bytes(), cpu_vendor())
        return _probed(config, header, MAIN_MEMORY, beside)
    config = replace(config, kv_type=choose_kv_type(config, header, on_cpu=False))
    config, request = settle(config, header, devices, projector_bytes)
    plan = _probed(config, header, place(request, devices), beside)
    free_choice = replace(request, n_gpu_layers=None, tensor_split=())
    return replace(plan, n_gpu_layers_fit=place(free_choice, devices).n_gpu_layers)


def memory_of_load(
    config: EngineConfig,
    header: GGUFHeader,
    shape: ContextShape,
    lines: Sequence[str],
    placement: Placement = MAIN_MEMORY,
    *,
    vocabulary_bytes: int = 0,
    projector_bytes: int = 0,
    free_bytes: int | None = None,
) -> MemoryPlan:
    """Return what was loaded, of a load that may have failed, by its log as far as it came.

    `lines` are to hold llama.cpp's debug lines, too: they tell the device of each layer.
    `vocabulary_bytes` is the growth of `heap_bytes` by the model, without copies of weights;
    `free_bytes` what was free of main memory before.
    """
    sizes = read_sizes(lines)
    n_host = sizes.copied_bytes
    if vocabulary_bytes:
        n_host += host_bytes(vocabulary_bytes, n_vocab_of(header), shape.n_ctx_total)
        n_host += _work_bytes(config, header, shape, placement)
    main = main_memory()
    if free_bytes is not None:
        main = replace(main, free_bytes=free_bytes)
    extras = Extras(main, n_host, projector_bytes)
    plan = make_plan(config, header, shape, sizes, placement, extras)
    return replace(plan, is_measured=True)


def _work_bytes(
    config: EngineConfig, header: GGUFHeader, shape: ContextShape, placement: Placement
) -> int:
    is_flash = may_have_flash_attention(config, header.architecture)
    return 0 if is_flash or placement.devices else attention_work_bytes(header, shape)


def _probed(
    config: EngineConfig, header: GGUFHeader, placement: Placement, beside: Extras
) -> MemoryPlan:
    """Plan a placement, and find the largest context that fits with it.

    `beside` has what neither a model nor a context takes.
    """
    # With devices, llama.cpp prefers memory that they can read to the CPU's own layouts.
    copies = 0 if placement.devices else sum(repacked(header.tensors).values())
    with probing(config, header, placement) as probe:

        def plan_of(shape: ContextShape) -> MemoryPlan:
            n_host = host_bytes(probe.vocabulary_bytes, probe.n_vocab, shape.n_ctx_total)
            n_host += copies + _work_bytes(config, header, shape, placement)
            extras = replace(beside, host_bytes=beside.host_bytes + n_host)
            return make_plan(config, header, shape, probe.sizes(shape), placement, extras)

        plan = plan_of(plan_shape(config, header))
        n_fit = largest_n_ctx(config, header, lambda shape: plan_of(shape).fits)
    # What a projector takes is an estimate.
    return replace(plan, n_ctx_fits=n_fit, is_measured=not beside.projector_bytes)
