"""Plans against what loads really take, each in a process of its own; more are in the soaks."""

import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine.base import EngineConfig
from tests.engine.llama_builders import MODEL
from tests.engine.measured_load import check_plan
from tests.engine.vision_files import gemma, needs_gemma, phi4

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]


def test_a_plan_is_what_a_load_takes() -> None:
    check_plan(EngineConfig(MODEL or "", n_ctx=2048, flash_attn="on", n_threads=2))


def test_a_plan_is_what_a_quantised_cache_takes() -> None:
    check_plan(EngineConfig(MODEL or "", n_ctx=8192, kv_type="q8_0", n_threads=2))


@needs_gemma
def test_a_plan_is_what_a_load_with_sliding_layers_and_copied_weights_takes() -> None:
    check_plan(EngineConfig(gemma(), n_ctx=2048, n_threads=2))


def test_a_plan_without_flash_attention_is_what_a_context_takes_that_is_full() -> None:
    config = EngineConfig(MODEL or "", n_ctx=1024, n_slots=1, flash_attn="off", n_threads=2)
    check_plan(config, n_passes=2)


def test_a_plan_is_what_a_load_with_a_projector_takes() -> None:
    files = phi4()
    check_plan(EngineConfig(files.model, mmproj=files.mmproj, n_ctx=512, n_slots=2, n_threads=2))
