"""Builds the peers: from the source archive of the bindings that are installed, with their flags.

Each part is skipped where it is done, and what was cut off is done again; what a part has to say
goes to a file beside it. The archive comes from the package index that pip is set up for.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import files
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from loadtest.comparison.exchange import PeerUnavailable
from loadtest.comparison.peers.places import BINDINGS, Places
from loadtest.comparison.peers.process import tail
from loadtest.console import Tell

PROGRAMS = ("llama-server", "llama-batched-bench")

# What the bindings' own build says, or leaves as it is, beside ggml's options. A web page in the
# server, HTTPS and tests are of no use here.
FIXED_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",  # so that the folder can be moved
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
DEFAULT_FLAGS = ("-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON")  # ggml's own, where nothing is told
GGML_CONFIG = "ggml-config.cmake"
OPTION = re.compile(r'^set\((GGML_[A-Z0-9_]+) "(ON|OFF)"\)', re.MULTILINE)
NO_OPTIONS = re.compile(r"GGML_BUILD_.*|.*_DEFAULT|.*_FOUND|GGML_CCACHE")

METADATA = re.compile(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", re.MULTILINE)


def build_peers(places: Places, tell: Tell) -> None:
    """Build whatever of the peers is not there yet.

    Raises:
        PeerUnavailable: something that is needed for it is missing, or fails.
    """
    places.folder.mkdir(parents=True, exist_ok=True)
    with _alone(places.folder):
        _fetch(places, tell)
        _install(places, tell)
        _compile(places, tell)
    tell(f"the peers are in {places.folder}")


def flags_of(config: str | None) -> list[str]:
    """Return CMake's arguments for a build like the one that has left a `ggml-config.cmake`."""
    options = [
        f"-D{name}={value}"
        for name, value in OPTION.findall(config or "")
        if not NO_OPTIONS.fullmatch(name)
    ]
    return [*FIXED_FLAGS, *(options or DEFAULT_FLAGS)]


def script_packages(script: str) -> list[str]:
    """Return what a script's inline metadata (PEP 723) says that it needs, but the bindings."""
    found = METADATA.search(script)
    if found is None:
        raise PeerUnavailable("the example server does not say what it needs")
    lines = [line[2:] for line in found[1].splitlines()]
    needed: list[str] = tomllib.loads("\n".join(lines)).get("dependencies", [])
    return [package for package in needed if package != BINDINGS]


def _fetch(places: Places, tell: Tell) -> None:
    if places.source.exists():
        return
    package = f"{BINDINGS}=={places.version}"
    tell(f"fetching the source archive of {package}")
    with TemporaryDirectory(dir=places.folder, prefix="part-") as part:
        _run(
            [*_pip("download"), "--no-deps", "--no-binary", BINDINGS, "--dest", part, package],
            places.folder / "fetch.log",
        )
        archives = [*Path(part).glob("*.tar.gz")]
        if len(archives) != 1:
            raise PeerUnavailable(f"{package} has no source archive in this package index")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(part, filter="data")
        (top,) = (path for path in Path(part).iterdir() if path.is_dir())
        top.rename(places.source)


def _install(places: Places, tell: Tell) -> None:
    if places.python_packages.exists():
        return
    packages = script_packages(places.python_server.read_text())
    tell(f"installing what the example server needs: {', '.join(packages)}")
    with TemporaryDirectory(dir=places.folder, prefix="part-") as part:
        target = Path(part) / "python"
        _run([*_pip("install"), "--target", str(target), *packages], places.folder / "install.log")
        target.rename(places.python_packages)


def _compile(places: Places, tell: Tell) -> None:
    flags = flags_of(_installed_config())
    stamp = places.folder / "flags.json"
    wanted = msgspec.json.encode([*PROGRAMS, *flags])
    if stamp.exists() and stamp.read_bytes() == wanted and places.has_programs:
        return
    for tool, hint in (("cmake", "cmake"), ("c++", "a C++ compiler, or name one in CXX")):
        if shutil.which(tool) is None and not (tool == "c++" and "CXX" in os.environ):
            raise PeerUnavailable(f"there is no {tool} to build the peers with: install {hint}")
    log = places.folder / "build.log"
    tell(f"building {' and '.join(PROGRAMS)}, which takes minutes; see {log}")
    source, build = str(places.llama_cpp), str(places.build)
    _run(["cmake", "-S", source, "-B", build, *flags], places.folder / "configure.log")
    n_jobs = str(len(os.sched_getaffinity(0)))
    _run(["cmake", "--build", build, "--parallel", n_jobs, "--target", *PROGRAMS], log)
    stamp.write_bytes(wanted)


def _installed_config() -> str | None:
    """Return what the bindings' build has written down of its options, if it has."""
    for path in files(BINDINGS) or ():
        if path.name == GGML_CONFIG:
            return path.read_text()
    return None


def _pip(command: str) -> list[str]:
    asks_nothing = ("--disable-pip-version-check", "--no-input", "--quiet")
    return [sys.executable, "-m", "pip", command, *asks_nothing]


def _run(command: Sequence[str], log: Path) -> None:
    """Run a command to its end, with all that it says in a file; from the main thread."""
    with (
        log.open("wb") as output,
        _held_signals() as let_through,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            let_through()
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # or compilers would go on by themselves
            raise
    if code != 0:
        raise PeerUnavailable(
            f"`{' '.join(command[:4])} ...` has ended with status {code}; from {log}:\n{tail(log)}"
        )


@contextmanager
def _held_signals() -> Iterator[Callable[[], None]]:
    """Hold back what would end us until the yielded function is called, or the block is left.

    An exception amid the start of a process would leave that to itself.
    """
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: held.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }

    def let_through() -> None:
        while before:
            signal.signal(*before.popitem())
        while held:
            signal.raise_signal(held.pop())

    try:
        yield let_through
    finally:
        let_through()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise PeerUnavailable(f"somebody else is building the peers in {folder}") from err
        yield
