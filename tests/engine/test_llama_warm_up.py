"""What a load runs before it is done: all memory that any pass will need is used by then."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from runnerd.core.batch import Span
from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.probe_log import LoadSizes
from runnerd.engine.llama.wide_pass import share_with_all_kinds
from runnerd.models import resolve_model
from tests.engine.gemma import gemma, is_installed
from tests.engine.measured_load import TOKEN, anonymous_bytes, run

pytestmark = pytest.mark.llama

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def growth_after_load(model: str) -> int:
    """Return by how much a process grows by its first full pass."""
    config = EngineConfig(model, n_ctx=2048, n_threads=2)
    finished = subprocess.run(
        [sys.executable, "-m", "tests.engine.test_llama_warm_up", json.dumps(asdict(config))],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=True,
    )
    return int(finished.stdout.splitlines()[-1])


def test_a_full_pass_after_the_load_takes_no_more_memory() -> None:
    assert growth_after_load(str(resolve_model("smollm2"))) < MIB


@pytest.mark.skipif(not is_installed(), reason="Gemma is not installed")
def test_nor_does_it_where_some_layers_have_a_window(tmp_path: Path) -> None:
    model = gemma(tmp_path)
    assert model is not None
    assert growth_after_load(model) < MIB


def header(**numbers: int) -> GGUFHeader:
    return GGUFHeader(1, 3, "x", 0, {f"x.{name}": number for name, number in numbers.items()})


def test_one_layer_is_enough_where_all_are_alike() -> None:
    assert share_with_all_kinds(header(block_count=10), LoadSizes()) == pytest.approx(0.125)


def test_the_first_layer_that_sees_all_is_run() -> None:
    sizes = LoadSizes(sliding={0, 1, 2, 3, 4, 6, 7, 8, 9})
    assert share_with_all_kinds(header(block_count=10), sizes) == pytest.approx(0.625)


def test_the_first_layer_with_experts_is_run() -> None:
    dense_first = header(block_count=10, leading_dense_block_count=3)
    assert share_with_all_kinds(dense_first, LoadSizes()) == pytest.approx(0.425)


def test_a_pass_is_run_whole_where_its_layers_are_not_known() -> None:
    assert share_with_all_kinds(header(), LoadSizes()) == 1.0


def main(config: EngineConfig) -> None:
    """Load, and print the growth by a full pass."""
    engine = open_engine(config, lambda phase, fraction: True)
    before = anonymous_bytes()
    run(engine, [Span(0, 0, 0, (TOKEN,) * config.n_ubatch, True)])
    sys.stdout.write(f"{anonymous_bytes() - before}\n")


if __name__ == "__main__":
    main(EngineConfig(**json.loads(sys.argv[1])))
