"""The projectors that tests are made with do what they are said to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llama_cpp")

from loadtest.colours import NAMES
from loadtest.gguf import read_text_model
from runnerd.engine.base import Engine, EngineConfig
from tests.engine.feeding import encoded
from tests.engine.llama_builders import MODEL, loaded
from tests.engine.showing import image
from tests.engine.vision_files import (
    VisionModel,
    gemma3,
    heavy,
    idefics3,
    needs_gemma,
    phi4,
    qwen2vl,
)

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

Rows = npt.NDArray[np.float32]


@contextmanager
def encoder(files: VisionModel, n_image_rows: int = 0) -> Iterator[Engine]:
    config = EngineConfig(
        model=files.model,
        mmproj=files.mmproj,
        n_image_rows=n_image_rows,
        n_slots=1,
        n_ctx=256,
        n_batch=16,
        n_threads=1,
    )
    with loaded(config) as engine:
        yield engine


def rows_of(engine: Engine, width: int, height: int) -> list[Rows]:
    """Encode a picture of each colour."""
    pictures = [image([name], width=width, height=height) for name in NAMES]
    return [each.rows for each in encoded(engine, pictures).values()]


def assert_named(files: VisionModel, pictures: list[Rows], n_rows: int, space: str) -> None:
    """Assert that all rows of the pictures are the embeddings of their colours' names."""
    words = read_text_model(Path(files.model)).embeddings([space + name for name in NAMES])
    for rows, word in zip(pictures, words, strict=True):
        assert len(rows) == n_rows
        cosines = rows @ word / np.linalg.norm(rows, axis=1) / np.linalg.norm(word)
        assert cosines.min() > 0.999


def test_a_row_for_each_16_pixels_is_the_embedding_of_its_colour() -> None:
    files = phi4(max_tokens=16)
    with encoder(files) as engine:
        for width, height in ((16, 16), (32, 48), (160, 16)):
            pictures = rows_of(engine, width, height)
            assert_named(files, pictures, width * height // 256, "\u0120")


def test_each_tile_has_four_rows_of_its_colour() -> None:
    with encoder(idefics3()) as engine:
        assert_named(idefics3(), rows_of(engine, 128, 128), 5 * 4, "\u0120")


@needs_gemma
def test_a_square_picture_of_any_size_has_as_many_rows() -> None:
    files = gemma3(grid=2, speakers=0)
    with encoder(files) as engine:
        for width, height in ((16, 16), (64, 64), (50, 50)):
            assert_named(files, rows_of(engine, width, height), 4, "\u2581")


def test_a_heavy_projector_says_the_same_as_a_light_one() -> None:
    with encoder(heavy(max_tokens=4)) as slow, encoder(phi4(max_tokens=4)) as quick:
        for one, other in zip(rows_of(slow, 32, 32), rows_of(quick, 32, 32), strict=True):
            assert np.allclose(one, other, atol=0.01)


def test_rows_of_random_weights_share_positions() -> None:
    with encoder(qwen2vl(), n_image_rows=64) as engine:
        (one,) = encoded(engine, [image(["red"], width=64, height=48)]).values()
    time, y, x, _ = one.offsets
    assert len(one.rows) == 12
    assert not time.any()
    assert y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert x.tolist() == [0, 1, 2, 3] * 3
