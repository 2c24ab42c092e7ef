import sys
from pathlib import Path

import pytest

from runnerd import models
from runnerd.errors import ModelMissing
from runnerd.models import resolve_model


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that brings a model along, and cannot be imported."""
    folder = tmp_path / "llm_toy"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('not to be run')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(models.PACKAGES, "toy", ("llm_toy", "pip install llm-toy"))
    return folder


def test_what_is_no_alias_is_a_path() -> None:
    assert resolve_model("./some/model.gguf") == "./some/model.gguf"


def test_an_alias_is_the_file_in_its_package_which_is_not_run(package: Path) -> None:
    (package / "toy.gguf").touch()
    assert resolve_model("toy") == str(package / "toy.gguf")
    assert "llm_toy" not in sys.modules


def test_a_package_without_its_model_counts_as_missing(package: Path) -> None:
    with pytest.raises(ModelMissing, match="pip install llm-toy"):
        resolve_model("toy")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(models.PACKAGES, "toy", ("llm_nowhere", "pip install llm-nowhere"))
    with pytest.raises(ModelMissing, match="toy is not installed; to install it: pip install"):
        resolve_model("toy")
