"""Plans put together from headers made up here, and from what llama.cpp would say."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from runnerd.engine.base import EngineConfig, KVType
from runnerd.engine.device import CPU_ID, Device
from runnerd.engine.llama.gguf import GGUFHeader, MetaValue
from runnerd.engine.llama.gguf_tensors import TensorEntry
from runnerd.engine.llama.host_memory import attention_work_bytes, headroom_bytes
from runnerd.engine.llama.plan_build import Extras, make_plan
from runnerd.engine.llama.plan_fit import largest_n_ctx
from runnerd.engine.llama.plan_layers import kv_of
from runnerd.engine.llama.probe_log import MIB, CacheSize, LoadSizes
from runnerd.engine.llama.shape import ContextShape, plan_shape
from runnerd.engine.memory_plan import MemoryPlan
from runnerd.engine.placement import MAIN_MEMORY, Placement

F32 = 0
MAIN = Device(CPU_ID, "CPU", "cpu", 1 << 34, 1 << 33)
CUDA = tuple(
    Device(f"0000:0{n}:00.0", f"CUDA{n}", "gpu", 1 << 33, 1 << 32, library="CUDA") for n in (0, 1)
)
N_BLOCKS = 4


def header(n_blocks: int = N_BLOCKS, *, is_tied: bool = True, **metadata: MetaValue) -> GGUFHeader:
    """Return one of blocks of 64 x (64 + number) values, and a vocabulary of 100 tokens."""
    sizes: dict[str, MetaValue] = {
        "block_count": n_blocks,
        "context_length": 4096,
        "embedding_length": 64,
        "attention__head_count": 4,
    }
    tensors = {
        f"blk.{n}.ffn_up.weight": TensorEntry((64, 64 + n), F32) for n in range(n_blocks)
    } | {
        "token_embd.weight": TensorEntry((64, 100), F32),
        "output_norm.weight": TensorEntry((64,), F32),
    }
    if not is_tied:
        tensors["output.weight"] = TensorEntry((64, 100), F32)
    named = {f"toy.{key.replace('__', '.')}": value for key, value in (sizes | metadata).items()}
    return GGUFHeader(0, 3, "toy", len(tensors), named, tensors=tensors)


def config(n_ctx: int = 512, n_slots: int = 2) -> EngineConfig:
    return EngineConfig(model="toy.gguf", n_ctx=n_ctx, n_slots=n_slots)


def shape(toy: GGUFHeader) -> ContextShape:
    return plan_shape(config(), toy)


def planned(
    toy: GGUFHeader, sizes: LoadSizes | None = None, placement: Placement = MAIN_MEMORY
) -> MemoryPlan:
    extras = Extras(MAIN, host_bytes=1000, projector_bytes=500)
    return make_plan(config(), toy, shape(toy), sizes or LoadSizes(), placement, extras)


def file_bytes(toy: GGUFHeader) -> int:
    return sum(tensor.n_bytes for tensor in toy.tensors.values())


def check_sums(plan: MemoryPlan) -> None:
    """Assert that devices add up to layers."""
    of_layers = sum(layer.weight_bytes for layer in plan.layers) + plan.input_bytes
    assert sum(each.weight_bytes for each in plan.devices) == of_layers
    of_layers = sum(layer.kv_bytes for layer in plan.layers)
    assert sum(each.kv_bytes for each in plan.devices) == of_layers


def on_two_devices() -> LoadSizes:
    sizes = LoadSizes(devices={0: "CPU", 1: "CUDA0", 2: "CUDA0", 3: "CUDA1", 4: "CUDA1"})
    sizes.compute = {"CUDA0": 10, "CUDA1": 20, "CUDA_Host": 3, "CPU": 4}
    sizes.output = {"CUDA_Host": 7}
    return sizes


def test_weights_of_a_file_are_all_there_in_the_layers_and_the_input() -> None:
    toy = header()
    plan = planned(toy)
    assert [layer.weight_bytes for layer in plan.layers] == [
        *(64 * (64 + n) * 4 for n in range(N_BLOCKS)),
        64 * 4,
    ]
    assert plan.input_bytes == 64 * 100 * 4
    assert sum(layer.weight_bytes for layer in plan.layers) + plan.input_bytes == file_bytes(toy)


def test_layers_go_where_the_engine_says_and_buffers_with_them() -> None:
    plan = planned(header(is_tied=False), on_two_devices(), Placement(CUDA, (2, 2)))
    main, first, second = plan.devices
    ids = [layer.device for layer in plan.layers]
    assert ids == [CPU_ID, CUDA[0].id, CUDA[0].id, CUDA[1].id, CUDA[1].id]
    assert plan.n_gpu_layers == 4
    assert (main.compute_bytes, first.compute_bytes, second.compute_bytes) == (7, 10, 20)
    assert (main.output_bytes, first.output_bytes, second.output_bytes) == (7, 0, 0)
    assert (main.projector_bytes, second.projector_bytes) == (0, 500)
    assert (main.host_bytes, first.host_bytes) == (1000, 0)
    check_sums(plan)


def test_shared_embeddings_are_copied_to_the_device_of_the_output_layer() -> None:
    toy = header(is_tied=True)
    plan = planned(toy, on_two_devices(), Placement(CUDA, (2, 2)))
    assert plan.layers[-1].weight_bytes == 64 * 4 + 64 * 100 * 4
    check_sums(plan)
    assert planned(toy).layers[-1].weight_bytes == 64 * 4


def test_a_reserve_is_kept_on_devices_and_what_a_load_wants_beside_it_in_main_memory() -> None:
    plan = planned(header(), on_two_devices(), Placement(CUDA, (2, 2)))
    headroom = headroom_bytes(shape(header()).n_threads)
    assert [each.reserve_bytes for each in plan.devices] == [headroom, 512 * MIB, 512 * MIB]


def test_there_are_checkpoints_where_cells_are_forgotten_or_states_kept() -> None:
    toy = header(attention__sliding_window=64)
    narrow = replace(shape(toy), n_ubatch=64)  # else all of a slot is kept
    for sliding in ({0}, set[int]()):
        sizes = LoadSizes(devices={0: "CPU"}, sliding=sliding)
        plan = make_plan(config(), toy, narrow, sizes, MAIN_MEMORY, Extras(MAIN))
        assert plan.has_checkpoints == bool(sliding)
    states = CacheSize(MIB, 2, (0,), has_states=True)
    assert planned(header(), LoadSizes(caches=[states])).has_checkpoints
    assert not planned(header()).has_checkpoints


def test_sliding_layers_have_heads_of_their_own_size_and_fewer_cells() -> None:
    toy = header(
        attention__head_count_kv=2,
        attention__key_length=32,
        attention__value_length=32,
        attention__key_length_swa=16,
        attention__value_length_swa=16,
        attention__sliding_window=100,
    )
    wide = replace(shape(toy), n_ctx=4096, n_ctx_total=8192, n_ubatch=100)
    full, sliding = 2 * 64 * 2 * 8192, 2 * 32 * 2 * 2 * 256
    assert kv_of(toy, wide, {0, 2}) == (sliding, full, sliding, full)


def test_layers_that_read_the_cache_of_another_keep_nothing() -> None:
    plan = planned(header(attention__shared_kv_layers=1))
    assert [layer.shares_kv for layer in plan.layers] == [False, False, False, True, False]
    assert plan.layers[3].kv_bytes == 0 < plan.layers[2].kv_bytes


def test_latent_attention_keeps_keys_alone() -> None:
    toy = header(
        attention__head_count_kv=1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
    )
    assert kv_of(toy, shape(toy), ()) == (576 * 2 * 1024,) * N_BLOCKS


def test_layers_can_have_heads_of_different_number() -> None:
    toy = header(attention__head_count_kv=(1, 2, 0, 4))
    assert kv_of(toy, shape(toy), ()) == tuple(n * 32 * 2 * 1024 for n in (1, 2, 0, 4))


def test_where_the_engine_says_otherwise_of_a_cache_it_is_right_and_a_warning_names_both() -> None:
    toy = header()
    expected = sum(kv_of(toy, shape(toy), ()) or ())
    sizes = LoadSizes(caches=[CacheSize(3 * MIB, 512, (0, 1, 2, 3))])
    with capture_logs() as logs:
        plan = planned(toy, sizes)
    assert sum(layer.kv_bytes for layer in plan.layers) == 3 * MIB
    assert [(each["planned_bytes"], each["engine_bytes"]) for each in logs] == [(expected, 3 * MIB)]


def test_a_load_that_failed_at_its_cache_is_told_by_the_metadata() -> None:
    toy = header()
    plan = planned(toy, LoadSizes(devices=dict.fromkeys(range(5), "CPU")))
    assert [layer.kv_bytes for layer in plan.layers[:-1]] == list(kv_of(toy, shape(toy), ()) or ())


names = st.sampled_from(["CPU", "CUDA0", "CUDA1", "CUDA_Host"])


@given(
    n_blocks=st.integers(1, 12),
    is_tied=st.booleans(),
    heads=st.integers(0, 4),
    n_sharing=st.integers(0, 3),
    drawn=st.data(),
)
def test_devices_add_up_to_layers_whatever_is_where(
    n_blocks: int, is_tied: bool, heads: int, n_sharing: int, drawn: st.DataObject
) -> None:
    toy = header(
        n_blocks,
        is_tied=is_tied,
        attention__head_count_kv=heads,
        attention__shared_kv_layers=n_sharing,
        attention__sliding_window=64,
    )
    blocks = range(n_blocks)
    sizes = LoadSizes(
        devices={layer: drawn.draw(names) for layer in range(n_blocks + 1)},
        sliding=drawn.draw(st.sets(st.sampled_from(blocks))),
    )
    layers = drawn.draw(st.sets(st.sampled_from(blocks)))
    if layers:
        n_bytes = drawn.draw(st.integers(0, 1 << 40))
        sizes.caches.append(CacheSize(n_bytes, 512, tuple(sorted(layers))))
    plan = planned(toy, sizes, Placement(CUDA, (1, 1)))
    check_sums(plan)
    copied = plan.layers[-1].device != CPU_ID and is_tied
    extra = toy.tensors["token_embd.weight"].n_bytes if copied else 0
    assert sum(each.weight_bytes for each in plan.devices) == file_bytes(toy) + extra
    assert len(plan.layers) == n_blocks + 1


@given(n_most=st.integers(0, 10_000), trained=st.integers(2, 9000))
def test_the_largest_context_that_fits_is_found(n_most: int, trained: int) -> None:
    toy = header(context_length=trained)
    found = largest_n_ctx(config(0), toy, lambda shape: shape.n_ctx <= n_most)
    assert found == (trained if trained <= n_most else min(n_most, trained) // 256 * 256)


def test_no_context_is_found_that_is_longer_than_all_cells() -> None:
    all_cells = replace(config(0), n_cells=1000)
    assert largest_n_ctx(all_cells, header(context_length=4096), lambda shape: True) == 1000


@pytest.mark.parametrize("part", ["devices", "caches", "compute"])
def test_nothing_but_the_header_is_needed(part: str) -> None:
    sizes = on_two_devices()
    setattr(sizes, part, type(getattr(sizes, part))())
    check_sums(planned(header(), sizes, Placement(CUDA, (2, 2))))


@pytest.mark.parametrize(("kv_type", "n_bytes"), [("f16", 8), ("q8_0", 2 * 2 * 32 * 4 * 1024)])
def test_quantised_keys_are_shifted_as_floats(kv_type: KVType, n_bytes: int) -> None:
    toy = header(attention__head_count_kv=2, attention__key_length=32)
    quantised = replace(config(), kv_type=kv_type)
    sizes = LoadSizes(compute={"CPU": 8})
    shape = plan_shape(quantised, toy)
    plan = make_plan(quantised, toy, shape, sizes, MAIN_MEMORY, Extras(MAIN))
    assert plan.devices[0].compute_bytes == n_bytes


def test_a_pass_without_flash_attention_has_weights_for_all_cells_of_a_slot() -> None:
    toy = header()
    assert attention_work_bytes(toy, shape(toy)) == 4 * 512 * 512 * 2
    several = header(attention__head_count=(2, 8, 4, 4))
    assert attention_work_bytes(several, shape(toy)) == 8 * 512 * 512 * 2


def test_the_model_is_named_by_its_file() -> None:
    assert planned(header()).model == Path("toy.gguf").stem
