"""Projectors written, and text models read, without any library that reads them."""

from pathlib import Path

import numpy as np
import pytest

from loadtest.colours import NAMES
from loadtest.gguf import read_text_model, rename_tokens, write_gguf
from loadtest.pictures import RGB, picture, pixels
from loadtest.projector import FILLER, Kind, Shape, make_projector
from loadtest.toy import write_toy
from runnerd.engine.llama.gguf import read_gguf
from runnerd.media.images import decode
from tests.engine.gguf_files import STRING, GGUFFile, array, tensor, text
from tests.engine.gguf_files import string as gguf_string

N_EMBD = 64
Q8_0 = 8
VOCABULARY = ("<mark>", *(f"\u0120{name}" for name in NAMES), FILLER)


def text_model(folder: Path, data: bytes, kind: int) -> Path:
    """Write a text model that has embeddings and nothing else."""
    tokens = b"".join(map(gguf_string, VOCABULARY))
    entries = (
        text("general.architecture", "toy"),
        array("tokenizer.ggml.tokens", STRING, len(VOCABULARY), tokens),
    )
    shape = tensor("token_embd.weight", (N_EMBD, len(VOCABULARY)), kind)
    path = folder / "toy.gguf"
    path.write_bytes(GGUFFile(entries, (shape,), data).to_bytes())
    return path


@pytest.fixture
def plain_model(tmp_path: Path) -> Path:
    """A text model whose embeddings count up."""
    rows = np.arange(len(VOCABULARY) * N_EMBD, dtype=np.float32)
    return text_model(tmp_path, rows.tobytes(), 0)


def test_embeddings_are_read_by_their_tokens(plain_model: Path) -> None:
    rows = read_text_model(plain_model).embeddings([FILLER, "<mark>"])
    assert rows[0].tolist() == list(range(12 * N_EMBD, 13 * N_EMBD))
    assert rows[1].tolist() == list(range(N_EMBD))


def test_embeddings_in_blocks_are_read_with_their_scales(tmp_path: Path) -> None:
    block = np.dtype([("scale", "<f2"), ("values", "i1", 32)])
    blocks = np.zeros(len(VOCABULARY) * N_EMBD // 32, block)
    blocks["scale"] = np.arange(len(blocks)) / 4
    blocks["values"] = np.arange(-16, 16)
    model = read_text_model(text_model(tmp_path, blocks.tobytes(), Q8_0))
    (row,) = model.embeddings(["\u0120black"])
    values = np.arange(-16, 16)
    assert row.tolist() == [*(values * 0.5).tolist(), *(values * 0.75).tolist()]


def test_a_word_that_the_model_has_not_is_named(plain_model: Path) -> None:
    with pytest.raises(ValueError, match="mauve"):
        read_text_model(plain_model).embeddings(["mauve"])


def test_a_renamed_token_changes_nothing_else(plain_model: Path, tmp_path: Path) -> None:
    model, path = read_text_model(plain_model), tmp_path / "renamed.gguf"
    rename_tokens(model, path, {"<mark>": "<a much longer mark than before>"})
    renamed = read_text_model(path)
    assert renamed.token_ids["<a much longer mark than before>"] == 0
    assert renamed.token_ids.keys() - model.token_ids.keys() == {"<a much longer mark than before>"}
    words = [*VOCABULARY[1:]]
    assert np.array_equal(renamed.embeddings(words), model.embeddings(words))


@pytest.mark.parametrize("kind", ["gemma3", "phi4", "idefics3"])
def test_a_projector_is_a_file_whose_tensors_are_all_there(
    plain_model: Path, tmp_path: Path, kind: Kind
) -> None:
    projector = make_projector(plain_model, kind, Shape(grid=4, speakers=2))
    header = read_gguf(str(projector.write(tmp_path / "mmproj.gguf")))
    assert header.architecture == "clip"
    assert header.metadata["clip.vision.projection_dim"] == N_EMBD
    assert {name: entry.extents for name, entry in header.tensors.items()} == {
        name: tensor.shape[::-1] for name, tensor in projector.tensors.items()
    }


def test_tensors_of_zeros_take_no_disk(tmp_path: Path) -> None:
    path = tmp_path / "holes.gguf"
    tensors = {"hole": np.zeros((1024, 1024), np.float32), "end": np.ones(8, np.float32)}
    write_gguf(path, {"general.architecture": "toy"}, tensors)
    status = path.stat()
    assert status.st_size > 2**22 > 100 * status.st_blocks
    assert path.read_bytes().endswith(np.ones(8, np.float32).tobytes())


def test_speakers_must_divide_the_grid(plain_model: Path) -> None:
    with pytest.raises(ValueError, match="3 speakers"):
        make_projector(plain_model, "gemma3", Shape(grid=4, speakers=3))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_a_picture_holds_its_colours(kind: str) -> None:
    rgb = decode(picture(["red", "blue"], ["pink", "white"], width=6, height=4, kind=kind), 100)
    assert rgb.shape == (4, 6, 3)
    assert np.array_equal(rgb, pixels(["red", "blue"], ["pink", "white"], width=6, height=4))
    assert tuple(rgb[3, 0]) == RGB["pink"]


def test_a_toy_is_a_projector_and_pictures_of_the_colours_in_their_names(plain_model: Path) -> None:
    projector, *files = write_toy(plain_model, plain_model.parent / "new" / "folder")
    assert read_gguf(str(projector)).metadata["clip.projector_type"] == "phi4"
    assert [path.name for path in files] == ["red.png", "blue.png"]
    for path in files:
        rgb = decode(path.read_bytes(), 2**16)
        assert rgb.reshape(-1, 3).min(0).tolist() == list(RGB[path.stem])
