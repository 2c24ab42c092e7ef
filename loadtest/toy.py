"""Projectors made on the spot: to try images without a model that sees, and to measure them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest.images import ImageSetup
from loadtest.pictures import picture
from loadtest.projector import HEAVY, Shape, make_projector

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


@contextmanager
def image_setup(model: str, projector: Path | None, *, is_heavy: bool) -> Iterator[ImageSetup]:
    """Lend what to measure images with: a model's projector, or one that is made for it."""
    with TemporaryDirectory(prefix="loadtest-") as folder:
        few_rows = projector
        if projector is None:
            large = HEAVY if is_heavy else Shape()
            projector, few_rows = (
                make_projector(Path(model), "phi4", shape).write(Path(folder, name))
                for name, shape in (("mmproj.gguf", large), ("few.gguf", FEW_ROWS))
            )
        yield ImageSetup(
            model=model, options=[f"--mmproj={projector}"], few_rows=[f"--mmproj={few_rows}"]
        )
