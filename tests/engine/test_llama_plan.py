"""Plans of real models and of tiny ones of other kinds, against llama.cpp's own words."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

from structlog.testing import capture_logs

from runnerd.engine import plan_engine
from runnerd.engine.base import EngineConfig, KVType
from runnerd.engine.llama.context_params import context_params
from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.host_memory import heap_bytes
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.model import LOAD_MMAP, ModelParams
from runnerd.engine.llama.plan import memory_of_load
from runnerd.engine.llama.plan_layers import kv_of
from runnerd.engine.llama.probe import kept_log, probing
from runnerd.engine.llama.probe_log import MIB, ROUNDING_BYTES
from runnerd.engine.llama.repack import repacked
from runnerd.engine.llama.shape import plan_shape
from runnerd.engine.placement import MAIN_MEMORY
from runnerd.errors import BadModel, ConfigError, ModelMissing
from tests.engine.gemma import gemma, is_installed
from tests.engine.gguf_files import ARCHITECTURE, GGUFFile
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.tiny_models import lfm2, mamba, qwen2vl

pytestmark = pytest.mark.llama

needs_smollm2 = pytest.mark.skipif(MODEL is None, reason="the test model is not installed")
needs_gemma = pytest.mark.skipif(not is_installed(), reason="the test model is not installed")
_OTHERS = re.compile(r"\(and (\d+) others\) cannot be used with preferred buffer type CPU_")


@pytest.fixture(scope="module")
def gemma_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = gemma(tmp_path_factory.mktemp("gemma"))
    assert path is not None
    return path


def data_bytes(header: GGUFHeader) -> int:
    return sum(tensor.n_bytes for tensor in header.tensors.values())


def check_exact(config: EngineConfig) -> None:
    """Assert that the metadata tells of each cache what llama.cpp does, and of all weights."""
    header = read_gguf(config.model)
    shape = plan_shape(config, header)
    with probing(config, header, MAIN_MEMORY) as probe:
        sizes = probe.sizes(shape)
    by_layer = kv_of(header, shape, sizes.sliding)
    assert by_layer is not None
    for cache in sizes.caches:
        told = sum(by_layer[layer] for layer in cache.layers)
        assert abs(told - cache.n_bytes) <= ROUNDING_BYTES
    with capture_logs() as logs:
        plan = plan_engine(config)
    assert not logs
    assert tuple(layer.kv_bytes for layer in plan.layers) == (*by_layer, 0)
    weights = plan.input_bytes + sum(layer.weight_bytes for layer in plan.layers)
    assert weights == data_bytes(header)


@needs_smollm2
@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("n_ctx", [512, 2048, 8192])
def test_every_layer_is_exact(n_ctx: int, kv_type: KVType) -> None:
    check_exact(llama_config(n_ctx=n_ctx, kv_type=kv_type))


@needs_gemma
@pytest.mark.parametrize("kv", ["split", "unified"])
@pytest.mark.parametrize("n_ctx", [512, 2048, 8192])
def test_every_layer_is_exact_where_some_slide(gemma_path: str, n_ctx: int, kv: str) -> None:
    config = replace(llama_config(model=gemma_path, n_ctx=n_ctx), n_batch=512)
    check_exact(replace(config, kv="unified" if kv == "unified" else "split"))


@needs_gemma
def test_three_layers_of_gemma_see_all_and_have_more_cells(gemma_path: str) -> None:
    config = replace(llama_config(model=gemma_path, n_ctx=2048), n_batch=2048)
    blocks = plan_engine(config).layers[:-1]
    assert [at for at, layer in enumerate(blocks) if not layer.slides] == [5, 11, 17]
    assert {(layer.slides, layer.kv_bytes) for layer in blocks} == {
        (True, 4 * MIB),
        (False, 8 * MIB),
    }


@needs_gemma
def test_the_weights_that_the_cpu_copies_are_those_that_llama_cpp_copies(gemma_path: str) -> None:
    tensors = read_gguf(gemma_path).tensors
    config = llama_config(model=gemma_path)
    params = ModelParams().params
    params.load_mode = LOAD_MMAP
    with kept_log() as lines:
        handle = lib.llama_model_load_from_file(gemma_path.encode(), params)
        lib.llama_model_free(handle)
    header = read_gguf(gemma_path)
    loaded = memory_of_load(config, header, plan_shape(config, header), lines)
    copies = repacked(tensors)
    assert abs(loaded.devices[0].host_bytes - sum(copies.values())) <= ROUNDING_BYTES
    others = [int(found[1]) for line in lines if (found := _OTHERS.search(line))]
    # The first is named, and the shared embeddings are asked about twice.
    assert [n + 1 for n in others] == [len(tensors) + 1 - len(copies)] * len(others)


@needs_smollm2
def test_a_load_is_told_of_as_it_was_planned() -> None:
    config = llama_config(n_ctx=512)
    header = read_gguf(config.model)
    shape = plan_shape(config, header)
    params = ModelParams().params
    params.load_mode = LOAD_MMAP
    before = heap_bytes()
    with kept_log() as of_model:
        model = lib.llama_model_load_from_file(config.model.encode(), params)
    n_bytes = heap_bytes() - before
    with kept_log() as of_context:
        lib.llama_free(lib.llama_init_from_model(model, context_params(shape, flash_attention=1)))
    lib.llama_model_free(model)
    lines = of_model + of_context
    planned, loaded = (
        replace(plan, devices=(replace(plan.devices[0], host_bytes=0),), n_ctx_fits=0)
        for plan in (
            plan_engine(config),
            memory_of_load(config, header, shape, lines, vocabulary_bytes=n_bytes),
        )
    )
    free_bytes = planned.devices[0].device.free_bytes
    before_load = replace(loaded.devices[0].device, free_bytes=free_bytes)
    assert replace(loaded, devices=(replace(loaded.devices[0], device=before_load),)) == planned


@needs_smollm2
def test_a_plan_leaves_nothing_big_behind() -> None:
    config = llama_config(n_ctx=8192)
    plan_engine(config)
    before = heap_bytes()
    plan_engine(config)
    assert heap_bytes() - before < 1 << 20


@needs_smollm2
def test_the_trained_context_fits_in_the_memory_of_this_machine() -> None:
    plan = plan_engine(llama_config(n_ctx=512, n_slots=1))
    assert (plan.n_ctx_fits, plan.fits, plan.n_gpu_layers_fit) == (8192, True, 0)


@pytest.mark.parametrize("make", [mamba, lfm2, qwen2vl])
def test_models_of_other_kinds_are_planned(tmp_path: Path, make: Callable[[Path], str]) -> None:
    path = make(tmp_path)
    with capture_logs() as logs:
        plan = plan_engine(llama_config(model=path, n_ctx=512))
    assert not logs
    header = read_gguf(path)
    weights = plan.input_bytes + sum(layer.weight_bytes for layer in plan.layers)
    assert weights == data_bytes(header)
    assert plan.n_layers == 3
    assert plan.n_ctx_fits == 4096


def test_what_a_load_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing):
        plan_engine(llama_config(model=str(tmp_path / "none.gguf")))
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model at all")
    with pytest.raises(BadModel):
        plan_engine(llama_config(model=str(bad)))
    bad.write_bytes(GGUFFile((ARCHITECTURE,)).to_bytes())
    with pytest.raises(BadModel, match=r"bad\.gguf.*toy"):
        plan_engine(llama_config(model=str(bad)))


@needs_smollm2
def test_layers_for_devices_that_are_not_there_are_warned_of_as_by_a_load() -> None:
    with capture_logs() as logs:
        plan = plan_engine(replace(llama_config(), n_gpu_layers=3, devices=()))
    assert plan.n_gpu_layers == 0
    assert [line["event"] for line in logs] == ["placement.no_devices"]


@needs_smollm2
def test_sizes_beyond_the_model_are_refused_as_by_a_load() -> None:
    with pytest.raises(ConfigError, match=r"9000.*8192"):
        plan_engine(llama_config(n_ctx=9000))
    with pytest.raises(ModelMissing, match="adapter terse"):
        plan_engine(llama_config(adapters=(("terse", "none.gguf"),)))
