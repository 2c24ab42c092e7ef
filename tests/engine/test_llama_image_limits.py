"""How many rows images may have beside a context, and projectors that fail in use."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import structlog

pytest.importorskip("llama_cpp")

from loadtest.projector import Projector as ProjectorFile
from loadtest.projector import Shape, make_projector
from runnerd.core.prompt import ImagePart
from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig, Pixels
from runnerd.engine.llama.encoding import encode_chunks
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.library import is_of_memory
from runnerd.engine.llama.model import load_model
from runnerd.engine.llama.mtmd import IMAGE, chunks_of
from runnerd.engine.llama.mtmd import lib as mtmd
from runnerd.engine.llama.phases import Phases
from runnerd.engine.llama.projector import Projector, load_projector
from runnerd.engine.llama.worst_image import try_worst_image
from runnerd.errors import BadModel, ConfigError, EngineFailed, InvalidMedia, LoadCancelled
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import context_of, loaded_llama
from tests.engine.vision_files import (
    VisionModel,
    idefics3,
    phi4,
    qwen2vl,
    random_qwen2vl,
    smollm2,
    tiny_gemma3,
    write,
)

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

N_MARKS = 2  # of an image of qwen2vl


def config_of(files: VisionModel, *, n_ctx: int = 256, n_image_rows: int = 0) -> EngineConfig:
    return llama_config(
        model=files.model, mmproj=files.mmproj, n_ctx=n_ctx, n_image_rows=n_image_rows
    )


@contextmanager
def projector_of(files: VisionModel, n_ctx: int = 256) -> Iterator[Projector]:
    """Load a projector that no image was tried with."""
    phases = Phases(lambda phase, fraction: True)
    model = load_model(files.model, read_gguf(files.model), phases)
    try:
        projector = load_projector(model, config_of(files), phases, 1, n_ctx)
        try:
            yield projector
        finally:
            projector.close()
    finally:
        model.close()


@cache
def not_finite() -> VisionModel:
    """Return a projector that divides by zero."""
    sound = random_qwen2vl()
    entries = {
        **sound.entries,
        "clip.vision.image_mean": (0.0, 0.0, 0.0),
        "clip.vision.image_std": (0.0, 0.0, 0.0),
    }
    mmproj = write("not-finite", ProjectorFile(entries, sound.tensors))
    return VisionModel(qwen2vl().model, mmproj)


@cache
def without_bounds() -> VisionModel:
    """Return a projector that cuts images into any number of tiles."""
    model = idefics3().model
    sound = make_projector(Path(model), "idefics3", Shape(grid=2, longest_edge=128))
    entries = {**sound.entries, "clip.vision.preproc_image_size": 0}
    return VisionModel(model, write("without-bounds", ProjectorFile(entries, sound.tensors)))


# --- limits -------------------------------------------------------------------------------------


def test_by_itself_an_image_takes_no_more_than_half_of_the_context() -> None:
    with structlog.testing.capture_logs() as logs, loaded_llama(config_of(qwen2vl())) as engine:
        assert engine.model.n_image_rows == 128 + N_MARKS
        (group,) = engine.expand([ImagePart(1, 4000, 4000)]).groups
        assert group.n_inputs <= 128
    (told,) = [line for line in logs if line["event"] == "images.limited"]
    assert told["log_level"] == "info"
    assert (told["n_inputs_from"], told["n_inputs_to"]) == (4096 + N_MARKS, 128 + N_MARKS)


def test_a_projector_whose_images_are_small_enough_is_left_as_it_was_trained() -> None:
    with structlog.testing.capture_logs() as logs, loaded_llama(config_of(phi4(64))) as engine:
        assert engine.model.n_image_rows == 64
    assert not [line for line in logs if line["event"].startswith("images.")]


def test_a_projector_that_takes_no_limit_reads_what_fits_in_the_context() -> None:
    with structlog.testing.capture_logs() as logs, loaded_llama(config_of(phi4())) as engine:
        assert engine.model.n_image_rows == 255
        (group,) = engine.expand([ImagePart(1, 240, 240)]).groups
        assert group.n_inputs == 225
        with pytest.raises(InvalidMedia, match=r"1024 inputs.* less than the 256 of the context"):
            engine.expand([ImagePart(1, 600, 600)])
    (told,) = [line for line in logs if line["event"] == "images.not_limited"]
    assert told["log_level"] == "warning"
    assert (told["wanted"], told["n_inputs"]) == (128, 1024)


def test_a_limit_asked_for_that_the_projector_does_not_take_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"images of 36 rows at most.* up to 1024"):
        open_engine(config_of(phi4(), n_image_rows=36), lambda phase, fraction: True)


def test_a_limit_asked_for_may_be_more_than_half_of_the_context() -> None:
    with loaded_llama(config_of(qwen2vl(), n_image_rows=196)) as engine:
        assert engine.model.n_image_rows == 196 + N_MARKS


def test_a_limit_that_the_projector_cannot_go_down_to_is_left_away_where_nobody_asked() -> None:
    sound = make_projector(Path(smollm2()), "phi4")
    tensors = {name.replace("mm.0.", "mm.1."): each for name, each in sound.tensors.items()}
    tensors["mm.1.weight"] = np.tile(sound.tensors["mm.0.weight"], (1, 4))  # 2 x 2 patches each
    entries = {
        **sound.entries,
        "clip.projector_type": "lfm2",  # of 64 to 256 rows
        "clip.vision.projector.scale_factor": 2,
    }
    files = VisionModel(smollm2(), write("lfm2", ProjectorFile(entries, tensors)))
    with structlog.testing.capture_logs() as logs, loaded_llama(config_of(files, n_ctx=120)):
        (told,) = [line for line in logs if line["event"] == "images.not_limited"]
    assert told["wanted"] == 60


def test_what_images_take_is_bounded_where_the_projector_knows_no_bound() -> None:
    with loaded_llama(config_of(without_bounds())) as engine:
        assert engine.model.n_image_rows <= 255
        with pytest.raises(InvalidMedia, match="4000 x 4000 pixels"):
            engine.expand([ImagePart(1, 4000, 4000)])


# --- warm-up ------------------------------------------------------------------------------------


def test_a_load_can_be_stopped_while_the_projector_is_loaded_again() -> None:
    told: list[float] = []

    def progress(phase: str, fraction: float) -> bool:
        if phase == "projector":
            told.append(fraction)
        return told.count(1.0) < 2

    with pytest.raises(LoadCancelled, match="projector"):
        open_engine(config_of(qwen2vl()), progress)
    assert told == sorted(told)


@pytest.mark.parametrize("n_first", range(5))
def test_a_load_can_be_stopped_between_any_two_passes_of_the_warm_up(n_first: int) -> None:
    told: list[float] = []

    def progress(phase: str, fraction: float) -> bool:
        if phase == "warm-up":
            told.append(fraction)
        return len(told) <= n_first

    with pytest.raises(LoadCancelled, match="warm-up"):
        open_engine(config_of(tiny_gemma3()), progress)
    assert told == sorted(set(told))
    assert told[-1] < 1.0


# --- faults -------------------------------------------------------------------------------------


def test_rows_that_are_not_finite_are_an_image_that_failed() -> None:
    with projector_of(not_finite()) as projector:
        (failed,) = projector.encode([Pixels(1, np.zeros((64, 64, 3), np.uint8))])
    assert isinstance(failed, EngineFailed)
    assert "not finite" in str(failed)


def test_a_projector_the_rows_of_which_are_not_finite_is_refused() -> None:
    with pytest.raises(BadModel, match=r"not-finite.*rows of the image that are not finite"):
        open_engine(config_of(not_finite()), lambda phase, fraction: True)


def test_an_image_that_cannot_be_encoded_fails_with_what_libmtmd_says() -> None:
    with (
        projector_of(tiny_gemma3()) as projector,
        chunks_of(projector.handle, 64, 64, None) as chunks,  # for counting only: without pixels
    ):
        images = [c for c in chunks or () if mtmd.mtmd_input_chunk_get_type(c) == IMAGE]
        (failed,) = encode_chunks(projector.handle, images, 32)
    assert isinstance(failed, EngineFailed)
    assert "placeholder" in str(failed)


def test_a_model_that_cannot_run_the_rows_of_an_image_is_refused() -> None:
    config = llama_config(model=qwen2vl().model, n_ctx=256, n_batch=1024)
    with (
        projector_of(qwen2vl(), n_ctx=2048) as projector,  # which a slot of the model has not
        loaded_llama(config) as engine,
        pytest.raises(BadModel, match=r"qwen2vl.mmproj.*a pass over 1024 rows.* no room"),
    ):
        try_worst_image(projector, context_of(engine), lambda done: None, has_window=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("failed to allocate buffer of size 123", True),
        ("ggml_gallocr: out of memory", True),
        ("clip_encode: unsupported operation", False),
    ],
)
def test_only_what_says_so_is_a_lack_of_memory(words: str, expected: bool) -> None:
    assert is_of_memory(words) == expected
