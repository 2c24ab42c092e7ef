"""BMP files: their headers, which Pillow reads without touching a pixel."""

from io import BytesIO
from typing import TYPE_CHECKING

from runnerd.errors import InvalidMedia
from runnerd.media.outline import Outline, check_size

if TYPE_CHECKING:
    from PIL.BmpImagePlugin import BmpImageFile

SIGNATURE = b"BM"
PACKED = (1, 2)  # in runs of 8 or 4 bits


def opened(data: bytes) -> "BmpImageFile":
    """Return the image of a BMP file; its pixels are not decoded yet.

    Raises:
        Exception: whatever Pillow raises on files that are broken.
    """
    from PIL.BmpImagePlugin import BmpImageFile

    return BmpImageFile(BytesIO(data))


def read_outline(data: bytes, n_pixels: int) -> Outline:
    """Return what a BMP file says of itself; whether its pixels are whole is not seen.

    Raises:
        InvalidMedia: it is packed or beyond the limits.
        Exception: as for `opened`.
    """
    image = opened(data)
    check_size(*image.size, n_pixels)
    # Pillow unpacks pixel by pixel in Python: minutes for a large one.
    if image.info["compression"] in PACKED:
        raise InvalidMedia("a BMP file that is packed", "one that is not")
    return Outline(*image.size)
