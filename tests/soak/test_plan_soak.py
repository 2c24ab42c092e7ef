"""Plans against what loads really take, of both test models, at three contexts and in all ways."""

import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine.base import EngineConfig, KVType
from tests.engine.gemma import is_installed
from tests.engine.llama_builders import MODEL
from tests.engine.measured_load import check_plan
from tests.engine.vision_files import gemma, heavy

pytestmark = [
    pytest.mark.llama,
    pytest.mark.soak,
    pytest.mark.skipif(MODEL is None or not is_installed(), reason="a test model is missing"),
]


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
@pytest.mark.parametrize(
    ("n_ctx", "kv_type", "kv"),
    [
        (512, "f16", "split"),
        (2048, "f16", "split"),
        (8192, "f16", "split"),
        (2048, "q8_0", "split"),
        (2048, "f16", "unified"),
    ],
)
def test_a_plan_is_what_a_load_takes(name: str, n_ctx: int, kv_type: KVType, kv: str) -> None:
    config = EngineConfig(
        gemma() if name == "gemma" else MODEL or "",
        n_ctx=n_ctx,
        kv_type=kv_type,
        kv="unified" if kv == "unified" else "split",
        n_threads=2,
    )
    check_plan(config)


@pytest.mark.parametrize("n_slots", [1, 4])
def test_a_plan_without_flash_attention_is_what_a_context_takes_that_is_full(n_slots: int) -> None:
    config = EngineConfig(MODEL or "", n_ctx=2048, n_slots=n_slots, flash_attn="off", n_threads=2)
    check_plan(config, n_passes=4)


def test_a_plan_is_what_a_load_with_a_heavy_projector_takes() -> None:
    files = heavy()
    check_plan(EngineConfig(files.model, mmproj=files.mmproj, n_ctx=2048, n_slots=2, n_threads=2))
