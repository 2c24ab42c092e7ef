"""Pictures of plain colours, as files."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image

RGB = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "gray": (128, 128, 128),
    "red": (255, 0, 0),
    "green": (0, 160, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "orange": (255, 150, 0),
    "purple": (128, 0, 128),
    "pink": (255, 150, 190),
    "brown": (150, 60, 20),
}


def pixels(*lines: Sequence[str], width: int = 64, height: int = 0) -> npt.NDArray[np.uint8]:
    """Return a picture of rectangles, a line of colours each; `height` 0: as the width."""
    colours = np.array([[RGB[name] for name in line] for line in lines], np.uint8)
    y = np.arange(height or width) * len(lines) // (height or width)
    x = np.arange(width) * len(lines[0]) // width
    return colours[y[:, np.newaxis], x]


def picture(*lines: Sequence[str], width: int = 64, height: int = 0, kind: str = "PNG") -> bytes:
    """Return the same as a file."""
    file = BytesIO()
    Image.fromarray(pixels(*lines, width=width, height=height)).save(file, kind)
    return file.getvalue()
