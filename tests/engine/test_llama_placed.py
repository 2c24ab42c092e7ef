"""Layers on a device: llama.cpp takes any that ggml has, so the CPU stands in for one here.

What llama.cpp leaves to the CPU itself it copies into a layout of the CPU's own where it can, and
what goes to a device it does not: so the log tells of the stand-in, too, which layers it has.
"""

import re
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine.device import Device
from runnerd.engine.llama.devices import described, listed
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.load import load_placed
from runnerd.engine.llama.model import load_model
from runnerd.engine.llama.phases import Phases
from runnerd.engine.placement import MAIN_MEMORY, Placement
from tests.engine.driving import PROMPTS, generate_alone, tokens
from tests.engine.gemma import gemma, is_installed
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.vision_files import qwen2vl

pytestmark = pytest.mark.llama

needs_smollm = pytest.mark.skipif(MODEL is None, reason="the test model is not installed")
needs_gemma = pytest.mark.skipif(not is_installed(), reason="the test model is not installed")
N_LAYERS = 19  # of Gemma 3 270M, with the output layer
COPIED = re.compile(r"CPU_REPACK model buffer size = +([\d.]+) MiB")


def phases() -> Phases:
    return Phases(lambda _phase, _fraction: True)


def on_stand_in(n_layers: int) -> Placement:
    """Return a placement of so many layers on the CPU as a device."""
    (cpu,) = (described(device) for device in listed() if device.kind == "cpu")
    return Placement((cpu,), (n_layers,)) if n_layers else MAIN_MEMORY


def copied_mib(path: str, n_layers: int) -> float:
    """Return the size of what llama.cpp has copied of the layers that are not on the device."""
    model = load_model(path, read_gguf(path), phases(), placement=on_stand_in(n_layers))
    try:
        return sum(float(found[1]) for line in model.said if (found := COPIED.search(line)))
    finally:
        model.close()


@needs_gemma
def test_layers_go_to_a_device_from_the_last_backwards_the_output_layer_first(
    tmp_path: Path,
) -> None:
    path = gemma(tmp_path)
    assert path
    sizes = [copied_mib(path, n_layers) for n_layers in (0, 1, 2, N_LAYERS - 1, N_LAYERS)]
    if not sizes[0]:
        pytest.skip("this CPU has no layout of its own for the model's weights")
    none, output, last_block, all_but_one, everything = sizes
    assert none == output > last_block > all_but_one > everything == 0
    # The first block alone is left where all but one are on the device.
    assert all_but_one < none / 10


@needs_smollm
@pytest.mark.parametrize("n_layers", [1, 10, 31])
def test_what_is_generated_does_not_hang_on_the_placement(n_layers: int) -> None:
    assert generated(n_layers) == generated(0)


def generated(n_layers: int) -> list[int]:
    config = llama_config()
    engine = load_placed(config, read_gguf(config.model), phases(), on_stand_in(n_layers))
    try:
        return generate_alone(engine, tokens(engine, PROMPTS[0]), 8)
    finally:
        engine.close()


@needs_smollm
def test_a_projector_goes_to_the_device_of_the_output_layer() -> None:
    files = qwen2vl()
    config = llama_config(model=files.model, mmproj=files.mmproj)
    engine = load_placed(config, read_gguf(config.model), phases(), on_stand_in(2))
    try:  # its largest image was encoded when it was loaded
        assert engine.model.n_image_rows > 0
    finally:
        engine.close()


@needs_smollm
def test_a_model_knows_where_it_was_placed() -> None:
    path = MODEL or ""
    placement = on_stand_in(3)
    model = load_model(path, read_gguf(path), phases(), placement=placement)
    try:
        assert model.placement == placement
        assert [type(device) for device in model.placement.devices] == [Device]
    finally:
        model.close()
