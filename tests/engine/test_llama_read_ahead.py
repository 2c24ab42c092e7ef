"""A model's files are read into the page cache, with progress, and can change meanwhile."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine import open_engine
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.read_ahead import CHUNK_BYTES, read_ahead, read_file
from runnerd.engine.memory import available_bytes
from runnerd.errors import BadModel, LoadCancelled, ModelMissing
from tests.engine.gguf_files import ARCHITECTURE, GGUFFile, tensor
from tests.engine.llama_builders import MODEL, llama_config

pytestmark = pytest.mark.llama

needs_model = pytest.mark.skipif(MODEL is None, reason="the test model is not installed")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of three chunks and a bit, of which nothing is in the page cache."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(3 * CHUNK_BYTES + 5))
    make_cold(path)
    return path


def make_cold(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())  # what is not yet written stays
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_cached(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1 << 20)], 0, os.RWF_NOWAIT) == 1 << 20
        except BlockingIOError:
            return False


def test_a_cold_file_is_read_with_progress(large: Path) -> None:
    if is_cached(large):
        pytest.skip("this file system keeps its pages")
    told: list[float] = []
    assert read_ahead([(str(large), large.stat().st_size)], told.append)
    assert is_cached(large)
    assert len(told) >= 4
    assert all(before < after for before, after in pairwise(told))
    assert told[-1] == 1.0


def test_several_files_are_one_course(large: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(bytes(1000))
    told: list[float] = []
    files = [(str(path), path.stat().st_size) for path in (large, small)]
    assert read_ahead(files, told.append)
    assert all(before < after for before, after in pairwise(told))
    assert told[-1] == 1.0


def test_it_can_be_stopped_between_chunks(large: Path) -> None:
    def stop(fraction: float) -> None:
        raise LoadCancelled(f"{fraction}")

    with pytest.raises(LoadCancelled):
        read_ahead([(str(large), large.stat().st_size)], stop)


def test_what_main_memory_has_no_room_for_is_not_read(large: Path) -> None:
    told: list[float] = []
    assert not read_ahead([(str(large), 2 * available_bytes())], told.append)
    assert not told


def test_a_disk_error_is_named_with_path_and_place() -> None:
    """What reading the memory of a process gives where nothing is mapped."""
    with pytest.raises(ModelMissing, match=r"/proc/self/mem: byte 0: .* \(errno 5\)"):
        list(read_file("/proc/self/mem", 10))


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"gone: byte 0: .* \(errno 2\)"):
        list(read_file(str(tmp_path / "gone"), 10))


def test_a_file_cut_short_since_its_header_was_read_is_refused_with_the_tensor(
    tmp_path: Path,
) -> None:
    path = tmp_path / "toy.gguf"
    tensors = tensor("first", (8,)), tensor("last", (8,), offset=32)
    file = GGUFFile((ARCHITECTURE,), tensors, bytes(64))
    path.write_bytes(file.to_bytes())
    n_bytes = read_gguf(str(path)).size_bytes
    os.truncate(path, n_bytes - 8)
    with pytest.raises(BadModel, match="cut short in tensor 'last'"):
        list(read_file(str(path), n_bytes))


def test_a_file_that_shrinks_and_is_whole_again_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    path.write_bytes(GGUFFile((ARCHITECTURE,)).to_bytes())
    n_bytes = path.stat().st_size
    with pytest.raises(BadModel, match=f"was cut to {n_bytes} bytes"):
        list(read_file(str(path), n_bytes + 1))


@needs_model
def test_a_cold_model_is_loaded_with_progress_over_all_of_phase_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(MODEL or "").read_bytes())
    make_cold(path)
    told: list[float] = []

    def progress(phase: str, fraction: float) -> bool:
        if phase == "weights":
            told.append(fraction)
        return True

    open_engine(llama_config(model=str(path), n_slots=1), progress).close()
    assert all(before <= after for before, after in pairwise(told))
    n_chunks = path.stat().st_size // CHUNK_BYTES
    assert len({fraction for fraction in told if fraction <= 0.5}) > n_chunks
    assert told[-1] == 1.0
