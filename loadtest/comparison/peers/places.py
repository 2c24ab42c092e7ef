"""Where peers are built, and what is there.

One folder for each version of the bindings, so that peers are always of the llama.cpp that the
daemon runs.
"""

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from loadtest.comparison.exchange import PeerUnavailable

BINDINGS = "llama-cpp-python"
BUILD_THEM = "build it with `python -m loadtest peers`"


@dataclass(frozen=True, slots=True)
class Places:
    """The files of the peers of one version; some may not be there yet."""

    version: str
    folder: Path

    @property
    def source(self) -> Path:
        """The unpacked source archive."""
        return self.folder / "source"

    @property
    def llama_cpp(self) -> Path:
        """The source of llama.cpp within it."""
        return self.source / "vendor" / "llama.cpp"

    @property
    def build(self) -> Path:
        """Where llama.cpp is built."""
        return self.folder / "build"

    @property
    def llama_server(self) -> Path:
        """The program."""
        return self.build / "bin" / "llama-server"

    @property
    def batched_bench(self) -> Path:
        """The program that decodes at full speed, and does nothing else."""
        return self.build / "bin" / "llama-batched-bench"

    @property
    def has_programs(self) -> bool:
        """Whether both are there."""
        return self.llama_server.exists() and self.batched_bench.exists()

    @property
    def python_server(self) -> Path:
        """The script of the bindings' example server."""
        return self.source / "examples" / "server" / "server.py"

    @property
    def python_packages(self) -> Path:
        """What that script imports, apart from the bindings."""
        return self.folder / "python"

    @property
    def description(self) -> str:
        """What was built, for reports."""
        return f"llama.cpp of {BINDINGS} {self.version}"


def places() -> Places:
    """Return the places of the installed version.

    Raises:
        PeerUnavailable: no bindings are installed.
    """
    try:
        installed = version(BINDINGS)
    except PackageNotFoundError as err:
        raise PeerUnavailable(f"{BINDINGS} is not installed: pip install 'runnerd[llama]'") from err
    return Places(installed, _caches() / "runnerd" / "peers" / installed)


def existing(path: Path) -> str:
    """Return the path of something that was built.

    Raises:
        PeerUnavailable: it is not there.
    """
    if not path.exists():
        raise PeerUnavailable(f"there is no {path}: {BUILD_THEM}")
    return str(path)


def _caches() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"  # as the XDG rules have it
