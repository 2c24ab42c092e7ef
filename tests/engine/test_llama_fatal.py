"""What a process says, and how it ends, where ggml gives up."""

import signal
import subprocess
import sys

import pytest

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

BAD = 65  # of sysexits.h
PRELUDE = """
import ctypes
from pathlib import Path
from threading import Thread
from runnerd.engine.llama.fatal import blamed_for_aborts
from runnerd.engine.llama.library import lib

def abort():
    path = Path(lib.__file__).with_name("lib") / "libllama.so"
    ctypes.CDLL(str(path)).ggml_abort(b"conv.c", 7, b"two\\nlines")
"""


def run(body: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", PRELUDE + body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("how", ["abort()", "it = Thread(target=abort); it.start(); it.join()"])
def test_an_abort_ends_the_process_as_a_bad_file_does(how: str) -> None:
    code, lines = run(f"with blamed_for_aborts('/a/file'): {how}")
    assert code == BAD
    assert lines[-1] == "/a/file: llama.cpp aborts on it: conv.c:7: two lines"


def test_a_line_that_was_begun_is_not_mixed_up_with_it() -> None:
    code, lines = run(
        "import os\nwith blamed_for_aborts('/a/file'):\n    os.write(2, b'begun')\n    abort()"
    )
    assert code == BAD
    assert lines[-2:] == ["begun", "/a/file: llama.cpp aborts on it: conv.c:7: two lines"]


def test_a_stderr_that_is_closed_changes_nothing_in_how_it_ends() -> None:
    code, _ = run("import os\nwith blamed_for_aborts('/a/file'):\n    os.close(2)\n    abort()")
    assert code == BAD


def test_behind_the_block_an_abort_is_an_abort() -> None:
    code, lines = run("with blamed_for_aborts('/a/file'): pass\nabort()")
    assert code == -signal.SIGABRT
    assert not any("/a/file" in line for line in lines)
