"""What is built, from where and how, without building it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from loadtest.comparison.exchange import PeerUnavailable
from loadtest.comparison.peers.building import (
    DEFAULT_FLAGS,
    FIXED_FLAGS,
    build_peers,
    flags_of,
    script_packages,
)
from loadtest.comparison.peers.places import Places, existing, places
from tests.processes import Family

needs_bindings = pytest.mark.llama

SCRIPT = '''#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.8"
# dependencies = [
#   "fastapi",
#   "llama-cpp-python",
#   "uvicorn>=0.3",
# ]
# ///
"""A server."""
'''


def built(folder: Path) -> Places:
    """Return places where everything but the programs is there."""
    done = Places("1.2", folder)
    done.python_server.parent.mkdir(parents=True)
    done.python_server.write_text(SCRIPT)
    done.python_packages.mkdir()
    return done


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that holds all programs that can be found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "mkdir", "sleep", "touch"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def said(_line: str) -> None:
    pass


@needs_bindings
def test_each_version_of_the_bindings_has_a_folder_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = version("llama-cpp-python")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert places() == Places(installed, tmp_path / "runnerd" / "peers" / installed)


@needs_bindings
@pytest.mark.parametrize("named", ["", "relative/path"])
def test_a_cache_folder_that_is_not_absolute_is_not_used(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places().folder.is_relative_to(tmp_path / ".cache" / "runnerd")


def test_what_is_not_built_is_unavailable_and_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="python -m loadtest peers"):
        existing(Places("1.2", tmp_path).llama_server)


def test_flags_are_those_that_the_bindings_were_built_with() -> None:
    config = (
        'set(GGML_AVX512 "OFF")\nset(GGML_NATIVE "ON")\nset(GGML_OPENMP "OFF")\n'
        'set(GGML_BUILD_TESTS "ON")\nset(GGML_BLAS_DEFAULT "OFF")\nset(GGML_CPU_ARM_ARCH "")\n'
        'find_library(X "ON")\n'
    )
    told = ["-DGGML_AVX512=OFF", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=OFF"]
    assert flags_of(config) == [*FIXED_FLAGS, *told]


@pytest.mark.parametrize("config", [None, "", "set(GGML_NATIVE maybe)"])
def test_where_no_flags_are_told_they_are_the_defaults(config: str | None) -> None:
    assert flags_of(config) == [*FIXED_FLAGS, *DEFAULT_FLAGS]


def test_a_script_says_what_it_needs_beside_the_bindings() -> None:
    assert script_packages(SCRIPT) == ["fastapi", "uvicorn>=0.3"]


def test_a_script_that_says_nothing_cannot_be_run() -> None:
    with pytest.raises(PeerUnavailable, match="does not say"):
        script_packages('"""A server."""\n')


@pytest.mark.parametrize(
    ("there", "missing"), [([], "install cmake"), (["cmake"], "a C[+][+] compiler")]
)
def test_a_missing_tool_is_named(
    there: list[str], missing: str, tools: Path, tmp_path: Path
) -> None:
    for name in there:
        tool(tools, name, "exit 0")
    with pytest.raises(PeerUnavailable, match=missing):
        build_peers(built(tmp_path / "peers"), said)


def test_a_build_that_fails_tells_the_end_of_its_log(tools: Path, tmp_path: Path) -> None:
    tool(tools, "c++", "exit 0")
    tool(tools, "cmake", "echo out of disk; exit 2")
    with pytest.raises(PeerUnavailable, match=r"status 2; from .*configure.log:\nout of disk"):
        build_peers(built(tmp_path / "peers"), said)


def test_what_is_built_with_the_same_flags_is_not_built_again(tools: Path, tmp_path: Path) -> None:
    done = built(tmp_path / "peers")
    bin_folder = done.llama_server.parent
    tool(tools, "c++", "exit 0")
    tool(
        tools,
        "cmake",
        f'echo "$@" >> {tmp_path}/calls; mkdir -p {bin_folder};'
        f" touch {done.llama_server} {done.batched_bench}",
    )
    lines: list[str] = []
    for _ in range(2):
        build_peers(done, lines.append)
    configured, made = (tmp_path / "calls").read_text().splitlines()
    assert configured.startswith(f"-S {done.llama_cpp} -B {done.build} -DCMAKE_BUILD_TYPE=Release")
    assert made.endswith("--target llama-server llama-batched-bench")
    assert sum("takes minutes" in line for line in lines) == 1

    (done.folder / "flags.json").write_text(json.dumps(["other flags"]))
    build_peers(done, lines.append)
    assert len((tmp_path / "calls").read_text().splitlines()) == 4


def test_two_builds_do_not_meddle_with_each_other(tools: Path, tmp_path: Path) -> None:
    done = built(tmp_path / "peers")
    tool(tools, "c++", "exit 0")
    again = (
        "from pathlib import Path; from loadtest.comparison.peers.building import *\n"
        f"build_peers(Places('1.2', Path({str(done.folder)!r})), print)"
    )
    root = Path(__file__).parents[3]
    tool(tools, "cmake", f'cd {root}; {sys.executable} -c "{again}"; exit 2')
    with pytest.raises(PeerUnavailable, match="somebody else is building"):
        build_peers(done, said)


@needs_bindings
@pytest.mark.parametrize("starts_in", ["foreground", "background"])
def test_a_build_that_is_told_to_end_leaves_nobody_behind(
    starts_in: str, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_background = starts_in == "background"  # of a shell: SIGINT is ignored there
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if is_background else signal.SIG_DFL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built(places().folder)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tool(tools, "c++", "exit 0")
    tool(tools, "cmake", f"sleep 1000 & echo $$ > {pipe}; wait")
    with subprocess.Popen(
        [sys.executable, "-m", "loadtest", "peers"],
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[3],
    ) as building:
        signal.signal(signal.SIGINT, before)
        family = Family(int(pipe.read_text()))
        building.send_signal(signal.SIGTERM)
        assert family.has_ended()
        assert building.wait() != 0


def test_an_index_without_the_archive_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PeerUnavailable, match=r"download .* has ended with status 1"):
        build_peers(Places("1.2", tmp_path / "peers"), said)
    assert not [path for path in (tmp_path / "peers").iterdir() if path.is_dir()]
