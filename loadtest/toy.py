"""A projector made on the spot, and pictures: to try images without a model that sees."""

from pathlib import Path

from loadtest.pictures import picture
from loadtest.projector import Shape, make_projector

FEW_ROWS = Shape(max_tokens=16)
TOY = Shape(max_tokens=64)
COLOURS = ("red", "blue")


def write_toy(model: Path, folder: Path) -> list[Path]:
    """Write a projector that names colours, and pictures of some; return their paths.

    Raises:
        ValueError: the model has no single tokens for the names of colours.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [make_projector(model, "phi4", TOY).write(folder / "colours.gguf")]
    for colour in COLOURS:
        path = folder / f"{colour}.png"
        path.write_bytes(picture([colour], width=32))
        written.append(path)
    return written
