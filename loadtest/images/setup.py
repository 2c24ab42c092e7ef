"""What images are measured on: a model's projector, or one that is made for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from loadtest.projector import HEAVY, Shape, make_projector
from loadtest.toy import FEW_ROWS


class ImageSetup(Struct, frozen=True, kw_only=True):
    """A model that reads images, and further options of `runnerd serve`.

    `few_rows` are those with which an image takes few rows, so that a thousand take minutes.
    """

    model: str
    options: list[str]
    few_rows: list[str]


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
