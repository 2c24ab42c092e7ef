"""What is told of a load, of every kind of model: phases in order, fractions that only grow."""

from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.tiny_models import lfm2, mamba
from tests.engine.vision_files import VisionModel, phi4, qwen2vl, tiny_gemma3

needs_model = pytest.mark.skipif(MODEL is None, reason="the test model is not installed")

PHASES = ("open", "weights", "context", "warm-up")
WITH_PROJECTOR = ("open", "weights", "projector", "context", "warm-up")
Told = list[tuple[str, float]]


def told_of(config: EngineConfig) -> Told:
    told: Told = []

    def progress(phase: str, fraction: float) -> bool:
        told.append((phase, fraction))
        return True

    open_engine(config, progress).close()
    return told


def check(told: Told, phases: tuple[str, ...]) -> None:
    """Assert that each of the phases is gone through once, from its beginning to its end."""
    assert [phase for phase, _ in groupby(told, lambda each: each[0])] == list(phases)
    for _, group in groupby(told, lambda each: each[0]):
        fractions = [fraction for _, fraction in group]
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)
        assert all(before <= after for before, after in pairwise(fractions))


@settings(deadline=None, max_examples=20)
@given(
    layers=st.integers(0, 3),
    options=st.sampled_from(["", "window=8", "recurrent=1", "images=0", "load_ms=16"]),
    n_slots=st.integers(1, 4),
)
def test_a_reference_engine_goes_through_its_phases(
    layers: int, options: str, n_slots: int
) -> None:
    if options == "recurrent=1":
        layers = max(1, layers)
    model = f"layers={layers},{options}".rstrip(",")
    check(told_of(EngineConfig(model, "reference", n_slots, 64)), PHASES)


@pytest.mark.llama
@needs_model
def test_a_model_goes_through_its_phases() -> None:
    check(told_of(llama_config()), PHASES)


@pytest.mark.llama
@needs_model
@pytest.mark.parametrize("make", [mamba, lfm2])
def test_a_model_that_keeps_states_goes_through_the_same(
    make: Callable[[Path], str], tmp_path: Path
) -> None:
    check(told_of(llama_config(model=make(tmp_path))), PHASES)


@pytest.mark.llama
@needs_model
@pytest.mark.parametrize("make", [tiny_gemma3, phi4, qwen2vl])
def test_a_projector_is_loaded_between_weights_and_context(make: Callable[[], VisionModel]) -> None:
    """That of Qwen2-VL is loaded a second time, as its images would take more than half."""
    files = make()
    config = llama_config(model=files.model, mmproj=files.mmproj, n_ctx=512, n_batch=512)
    check(told_of(config), WITH_PROJECTOR)
