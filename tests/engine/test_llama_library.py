import os
import subprocess
import sys
from pathlib import Path

import pytest

from runnerd.errors import EngineBroken, NoKVSlot

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.library import check_decode  # noqa: E402 needs llama_cpp


def test_a_good_decode_is_no_error() -> None:
    check_decode(0)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, NoKVSlot),
        (2, EngineBroken),
        (-1, AssertionError),
        (-2, EngineBroken),
        (-3, EngineBroken),
    ],
)
def test_a_code_of_decode_is_one_error(code: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_decode(code)


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_a_library_that_does_not_load_is_a_setting_to_correct(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "libllama.so").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", "import runnerd.engine.llama.library"],
        env=os.environ | {"LLAMA_CPP_LIB_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("runnerd.errors.ConfigError: llama-cpp-python does not load: "), last
