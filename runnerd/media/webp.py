"""WebP files: what their chunks say.

Source: WebP container specification, Google; RFC 9649.
"""

import struct
from collections.abc import Iterator

from runnerd.media import exif
from runnerd.media.outline import Outline, broken, check_size, cut_short

NAME = "WebP"
HAS_EXIF, IS_ANIMATED = 0x08, 0x02  # flags of an extended file
MOST_CHUNKS = 1024  # a still picture has eight at most, and some that are unknown

# Pillow holds four canvases at once, and copies one while no other thread may run: 40 ms for this.
MOST_PIXELS = 2**24


def is_webp(data: bytes) -> bool:
    """Whether a file begins like one."""
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def read_outline(data: bytes, n_pixels: int) -> Outline:
    """Return what a WebP file says of itself.

    Raises:
        InvalidMedia: it is broken or beyond the limits.
        struct.error: it ends early.
    """
    width, height = _size(data)
    check_size(width, height, min(n_pixels, MOST_PIXELS))
    turned = exif.UPRIGHT
    if data[12:16] == b"VP8X" and data[20] & (HAS_EXIF | IS_ANIMATED) == HAS_EXIF:
        for kind, start, stop in _chunks(data):
            if kind == b"EXIF":
                turned = exif.orientation(data[start:stop])
    return Outline(width, height, turned)


def _size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        width, x, height, y = struct.unpack_from("<HBHB", data, 24)
        return width + (x << 16) + 1, height + (y << 16) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and data[20:21] == b"\x2f":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    raise broken(NAME, "it does not begin with a picture") if data[30:] else cut_short(NAME)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield each chunk's kind, start and stop, as long as they make sense."""
    start = 12
    for _ in range(MOST_CHUNKS):
        if start + 8 > len(data):
            return
        kind, length = struct.unpack_from("<4sI", data, start)
        yield kind, start + 8, start + 8 + length
        start += 8 + length + (length & 1)
