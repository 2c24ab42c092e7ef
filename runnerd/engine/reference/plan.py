"""What the reference engine takes of memory: its weights, and arrays of all cells of all slots."""

from dataclasses import replace

import numpy as np

from runnerd.core.batch import Limits
from runnerd.engine.base import EngineConfig
from runnerd.engine.device import CPU_ID
from runnerd.engine.main_memory import main_memory
from runnerd.engine.memory import check_memory
from runnerd.engine.memory_plan import DeviceMemory, FailedAllocation, LayerMemory, MemoryPlan
from runnerd.engine.out_of_memory import out_of_memory
from runnerd.engine.reference.limits import plan_image_rows, plan_limits
from runnerd.engine.reference.model import N_PHASES
from runnerd.engine.reference.options import LayerKind, ReferenceOptions
from runnerd.engine.reference.tokenizer import N_VOCAB
from runnerd.errors import BadModel, OutOfMemory

F64_BYTES = np.dtype(np.float64).itemsize
N_ARRAYS = 3  # keys, turned keys, and values, of every layer whatever it is


def plan_reference(config: EngineConfig, options: ReferenceOptions) -> MemoryPlan:
    """Plan the load of a reference engine.

    Raises:
        BadModel, ConfigError: as the engine's.
    """
    if options.fail_load:
        raise BadModel("reference engine: the load is to fail (fail_load=1)")
    plan_image_rows(config, options)
    limits = plan_limits(config, options)
    plan = _plan(config, options, limits)
    (memory,) = plan.devices
    room = memory.device.free_bytes - memory.reserve_bytes
    per_ctx = (memory.kv_bytes + memory.compute_bytes) // limits.n_ctx
    n_fit = (room - memory.weight_bytes - memory.output_bytes) // per_ctx
    return replace(plan, n_ctx_fits=max(0, n_fit))


def plan_fitting(config: EngineConfig, options: ReferenceOptions) -> MemoryPlan:
    """Plan a load that is to be done now.

    Raises:
        OutOfMemory: main memory has no room for the arrays.
    """
    plan = plan_reference(config, options)
    (memory,) = plan.devices
    # Sines and cosines take as much again while they are made.
    n_bytes = memory.kv_bytes + 2 * memory.compute_bytes
    try:
        check_memory(plan.n_slots, plan.n_ctx, n_bytes)
    except OutOfMemory as err:
        failed = FailedAllocation("KV cache", CPU_ID, n_bytes)
        raise out_of_memory(str(err), plan.with_failure(failed)) from err
    return plan


def _plan(config: EngineConfig, options: ReferenceOptions, limits: Limits) -> MemoryPlan:
    dim, n_cells = options.dim, limits.n_slots * limits.n_ctx
    layers = [
        LayerMemory(
            device=CPU_ID,
            weight_bytes=8 * dim**2 * F64_BYTES,
            kv_bytes=(N_ARRAYS * n_cells + limits.n_slots * (kind is LayerKind.RECURRENT))
            * dim
            * F64_BYTES,
            slides=kind is LayerKind.SLIDING,
        )
        for kind in options.kinds
    ]
    n_output = (dim + N_VOCAB + N_PHASES) * N_VOCAB  # the weights, and tables made of them
    layers.append(LayerMemory(CPU_ID, n_output * F64_BYTES, 0))
    input_bytes = N_VOCAB * dim * F64_BYTES
    memory = DeviceMemory(
        main_memory(),
        weight_bytes=input_bytes + sum(layer.weight_bytes for layer in layers),
        kv_bytes=sum(layer.kv_bytes for layer in layers),
        compute_bytes=limits.n_ctx * dim // options.heads * F64_BYTES,  # sines and cosines
        output_bytes=limits.n_slots * N_VOCAB * F64_BYTES,
    )
    return MemoryPlan(
        model="reference",
        architecture="reference",
        n_ctx=limits.n_ctx,
        n_slots=limits.n_slots,
        n_cells=limits.n_cells,
        n_batch=limits.n_batch,
        n_ubatch=limits.n_ubatch,
        kv="unified" if limits.is_unified else "split",
        kv_type=config.kv_type,
        n_layers=options.layers,
        n_gpu_layers=0,
        input_bytes=input_bytes,
        layers=tuple(layers),
        devices=(memory,),
        has_checkpoints=limits.needs_checkpoints,
    )
