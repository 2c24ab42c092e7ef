"""The weights are placed as told, and what goes wrong with them has the right name."""

from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine.llama.devices import described, listed
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.model import ModelParams, load_model
from runnerd.engine.llama.phases import Phases
from runnerd.engine.placement import Placement
from runnerd.errors import BadModel
from tests.engine.llama_builders import MODEL

pytestmark = pytest.mark.llama

needs_smollm = pytest.mark.skipif(MODEL is None, reason="the test model is not installed")


def phases() -> Phases:
    return Phases(lambda _phase, _fraction: True)


def test_a_placement_becomes_a_list_of_devices_that_ends_with_null() -> None:
    cpu = next(listed())  # the one device that is everywhere
    settings = ModelParams(Placement((described(cpu),), (3,)))
    assert list(settings.devices) == [cpu.handle, None]
    assert settings.params.devices
    assert settings.params.n_gpu_layers == 3
    assert settings.params.tensor_split[:2] == [3.0, 0.0]


def test_with_main_memory_alone_the_list_is_there_and_empty() -> None:
    settings = ModelParams()
    assert list(settings.devices) == [None]
    assert settings.params.devices
    assert settings.params.n_gpu_layers == 0


@needs_smollm
def test_a_loaded_model_has_the_log_of_its_load_and_no_layers_on_devices_that_are_not_there() -> (
    None
):
    path = MODEL or ""
    model = load_model(path, read_gguf(path), phases())
    try:
        assert any("model buffer size" in line for line in model.said)
        assert any("layer   0 assigned to device CPU" in line for line in model.said)
        assert model.n_gpu_layers == 0
    finally:
        model.close()


@needs_smollm
def test_a_bad_file_is_not_taken_for_a_lack_of_memory_for_its_name(tmp_path: Path) -> None:
    bad = tmp_path / "memory-alloc.gguf"
    bad.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(BadModel, match="memory-alloc"):
        load_model(str(bad), read_gguf(MODEL or ""), phases())
