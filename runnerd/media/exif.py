"""How to turn an image, by its EXIF data.

Pillow reads all of EXIF, and warns on standard error of what is broken. Here one number is wanted,
and where it cannot be had the image stays as it is: viewers do the same.
"""

import struct

ORIENTATION = 0x0112  # the tag
SHORT = 3  # its type
UPRIGHT = 1
MOST_TAGS = 1000  # of the first directory; cameras write a few dozen
PREFIX = b"Exif\0\0"
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


def orientation(exif: bytes) -> int:
    """Return the number from 1 to 8 that EXIF data have; 1 if they have none that makes sense."""
    tiff = exif.removeprefix(PREFIX)
    order = BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return UPRIGHT
    try:
        return _find(tiff, order)
    except struct.error:
        return UPRIGHT


def _find(tiff: bytes, order: str) -> int:
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (n_tags,) = struct.unpack_from(f"{order}H", tiff, start)
    for number in range(min(n_tags, MOST_TAGS)):
        tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * number)
        if (tag, kind, count) == (ORIENTATION, SHORT, 1):
            return value if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT
