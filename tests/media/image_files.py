"""Image files: of every kind that is read, and what hostile ones are made of."""

import struct
import zlib
from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
N_PIXELS = 2**22
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture in which no two places look alike."""
    return Image.fromarray(random_array((height, width, 3), seed))


def random_array(shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """Return the file that Pillow makes of a picture."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def with_orientation(number: int) -> bytes:
    """Return EXIF data which say how to turn a picture."""
    exif = Image.Exif()
    exif[0x0112] = number
    return exif.tobytes()


def chunk(kind: bytes, body: bytes) -> bytes:
    """Return a chunk of a PNG file, with the right checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int,
    height: int,
    *,
    pixels: bytes = b"",
    depth: int = 8,
    colour: int = 2,
    before: Sequence[bytes] = (),
) -> bytes:
    """Return a PNG file, whatever its header promises; `pixels` are rows with their filters."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    packed = chunk(b"IDAT", zlib.compress(pixels, level=1))
    return b"".join([PNG_SIGNATURE, chunk(b"IHDR", header), *before, packed, chunk(b"IEND", b"")])


def gif_screen(width: int, height: int) -> bytes:
    """Return what a GIF file begins with: its screen, and a palette of two colours."""
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"


def gif_frame(width: int, height: int) -> bytes:
    """Return a frame of which only the first pixel is there."""
    return b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\0"
