"""A context that llama.cpp does not make: who has to act, and on what words."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from resource import RLIMIT_AS, getrlimit, setrlimit

import psutil
import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine.llama.context import LlamaContext
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.shape import ContextShape, plan_shape
from runnerd.errors import ConfigError, OutOfMemory
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

CONFIG = llama_config(flash_attn="off")


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    with loaded_llama(CONFIG) as engine:
        yield engine


@pytest.fixture
def shape() -> ContextShape:
    return plan_shape(CONFIG, read_gguf(CONFIG.model))


def test_what_no_memory_could_mend_is_a_wrong_setting_in_llama_cpps_words(
    engine: LlamaEngine, shape: ContextShape
) -> None:
    with pytest.raises(ConfigError, match="quantized V cache requires flash_attn"):
        LlamaContext(engine._model, replace(shape, kv_type="q8_0"), CONFIG, None)


@contextmanager
def memory_limited(n_bytes: int) -> Iterator[None]:
    """Let the process take no more than so many bytes more."""
    soft, hard = getrlimit(RLIMIT_AS)
    setrlimit(RLIMIT_AS, (psutil.Process().memory_info().vms + n_bytes, hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_AS, (soft, hard))


def test_a_cache_that_cannot_be_allocated_is_a_lack_of_memory(
    engine: LlamaEngine, shape: ContextShape
) -> None:
    large = replace(shape, n_ctx_total=2**16)
    with (
        memory_limited(2**29),
        pytest.raises(OutOfMemory, match=r"4 slots of 256, 77 bytes of KV cache: .*alloc"),
    ):
        LlamaContext(engine._model, large, CONFIG, 77)


def test_its_limits_tell_of_the_tile_that_prompts_fill(engine: LlamaEngine) -> None:
    assert engine.limits.n_tile == 1  # without flash attention
    with loaded_llama(llama_config(flash_attn="on", n_batch=64, n_ubatch=64)) as flash:
        assert flash.limits.n_tile == 64
