"""Models in several files."""

import struct
from pathlib import Path

import pytest

from runnerd.engine import open_engine, plan_engine
from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.gguf_parts import with_all_parts
from runnerd.errors import BadModel, LoadError, ModelMissing
from tests.engine.gguf_files import ARCHITECTURE, GGUFFile, entry, tensor

U16 = 2


def split(name: str, value: int) -> bytes:
    return entry(f"split.{name}", U16, struct.pack("<H", value))


def write_part(folder: Path, number: int, n_parts: int) -> str:
    """Write a part with a tensor of its own; only the first names the architecture."""
    entries = (split("no", number - 1), split("count", n_parts))
    path = folder / f"toy-{number:05}-of-{n_parts:05}.gguf"
    file = GGUFFile(
        entries + ((ARCHITECTURE,) if number == 1 else ()),
        (tensor(f"blk.{number}.weight", (8,)),),
        bytes(32),
    )
    path.write_bytes(file.to_bytes())
    return str(path)


def test_the_tensors_of_all_files_are_those_of_the_model(tmp_path: Path) -> None:
    first, *_ = [write_part(tmp_path, number, 3) for number in (1, 2, 3)]
    header = with_all_parts(first, read_gguf(first))
    assert list(header.tensors) == ["blk.1.weight", "blk.2.weight", "blk.3.weight"]
    assert header.architecture == "toy"


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    first = write_part(tmp_path, 1, 2)
    with pytest.raises(
        ModelMissing, match=r"toy-00002-of-00002.gguf: .* \(errno 2\): file 2 of 2 of the model"
    ):
        with_all_parts(first, read_gguf(first))


def test_a_later_file_is_refused_where_the_first_is_to_be_given(tmp_path: Path) -> None:
    _, second = (write_part(tmp_path, number, 2) for number in (1, 2))
    with pytest.raises(BadModel, match=r"toy-00002-of-00002.gguf: file 2 of 2 of a model"):
        with_all_parts(second, read_gguf(second))


@pytest.mark.llama
@pytest.mark.parametrize(("given", "named"), [(1, "file 3 of 3"), (2, "give the first one")])
def test_a_load_and_a_plan_refuse_the_same_before_anything_else(
    given: int, named: str, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    paths = [write_part(tmp_path, number, 3) for number in (1, 2)]
    config = EngineConfig(paths[given - 1], n_ctx=64, n_threads=1)
    phases = set()

    def progress(phase: str, fraction: float) -> bool:
        phases.add((phase, fraction))
        return True

    with pytest.raises(LoadError, match=named) as loading:
        open_engine(config, progress)
    with pytest.raises(LoadError, match=named) as planning:
        plan_engine(config)
    assert str(loading.value) == str(planning.value)
    assert phases == {("open", 0.0)}


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    first, second = (write_part(tmp_path, number, 2) for number in (1, 2))
    Path(second).write_bytes(Path(second).read_bytes()[:-8])
    with pytest.raises(BadModel, match="toy-00002-of-00002"):
        with_all_parts(first, read_gguf(first))


def test_a_model_in_one_file_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "toy-00001-of-00002.gguf"
    path.write_bytes(GGUFFile().to_bytes())
    header = read_gguf(str(path))
    assert with_all_parts(str(path), header) is header
