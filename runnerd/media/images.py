"""Files of images: looked at, and decoded to red, green and blue.

Pure functions over bytes, for worker threads: while they work hard, other threads run. What a file
holds besides its picture never reaches a decoder, and of Pillow's decoders none but those of five
formats are used. Transparent pixels are shown on white; profiles of colours are not applied.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Literal, assert_never

import numpy as np
import numpy.typing as npt

from runnerd.errors import InvalidMedia, Unsupported
from runnerd.media import bmp, gif, jpeg, png, webp
from runnerd.media.outline import Outline, broken, cut_short

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

Rgb = npt.NDArray[np.uint8]
Format = Literal["PNG", "JPEG", "WebP", "GIF", "BMP"]

READABLE = "a PNG, JPEG, WebP, GIF or BMP file"
STRIP_PIXELS = 2**18  # converted at once: the copies that stop other threads take a millisecond
WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its image: its format, and its sides in pixels as it is to be seen."""

    format: Format
    width: int
    height: int


def read_header(data: bytes, n_pixels: int) -> Header:
    """Return what a file says of its image; nothing is decoded.

    Raises:
        InvalidMedia: it is no image that can be read, is broken, or has more than `n_pixels`.
        Unsupported: nothing is installed that could decode it.
    """
    _check_installed()
    kind = _format_of(data)
    outline = _read_outline(kind, data, n_pixels)
    sides = (outline.width, outline.height)
    return Header(kind, *(reversed(sides) if outline.is_turned else sides))


def decode(data: bytes, n_pixels: int) -> Rgb:
    """Return the pixels of a file's image, of shape (height, width, 3), as it is to be seen.

    Raises:
        InvalidMedia: as for `read_header`, or pixels are missing or damaged.
        Unsupported: nothing is installed that could decode it.
    """
    _check_installed()
    kind = _format_of(data)
    outline = _read_outline(kind, data, n_pixels)
    with _told_plainly(kind):
        image = _open(kind, data, n_pixels)
        image.load()
        if image.size != (outline.width, outline.height):
            raise broken(kind, f"its image is {image.width} x {image.height} pixels after all")
        return _rgb(image, outline)


def media_id_of(rgb: Rgb) -> int:
    """Return the number of an image by its content: 63 bits of a digest of shape and pixels."""
    digest = sha256(struct.pack(">QQ", *rgb.shape[:2]))
    digest.update(np.ascontiguousarray(rgb).data)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def _check_installed() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as err:
        raise Unsupported(
            "images cannot be read without Pillow: pip install 'runnerd[vision]'"
        ) from err


def _format_of(data: bytes) -> Format:
    """Return what a file is by its first bytes, whatever anybody says it is."""
    if data.startswith(png.SIGNATURE):
        return "PNG"
    if data.startswith(jpeg.SIGNATURE):
        return "JPEG"
    if webp.is_webp(data):
        return "WebP"
    if data.startswith(gif.SIGNATURES):
        return "GIF"
    if data.startswith(bmp.SIGNATURE):
        return "BMP"
    if not data:
        raise InvalidMedia("an empty file", READABLE)
    raise InvalidMedia(f"a file that begins with {data[:8].hex(' ')}", READABLE)


def _read_outline(kind: Format, data: bytes, n_pixels: int) -> Outline:
    try:
        match kind:
            case "PNG":
                return png.read_outline(data, n_pixels)
            case "JPEG":
                return jpeg.read_outline(data, n_pixels)
            case "WebP":
                return webp.read_outline(data, n_pixels)
            case "GIF":
                return gif.read_outline(data, n_pixels)
            case "BMP":
                with _told_plainly(kind):
                    return bmp.read_outline(data, n_pixels)
            case _:
                assert_never(kind)
    except (struct.error, IndexError) as err:
        raise cut_short(kind) from err


def _open(kind: Format, data: bytes, n_pixels: int) -> "ImageFile":
    """Open a file with the one decoder for it: not by `Image.open`, which tries others, too."""
    match kind:
        case "PNG":
            from PIL.PngImagePlugin import PngImageFile

            return PngImageFile(BytesIO(png.bare(data)))
        case "JPEG":
            from PIL.JpegImagePlugin import JpegImageFile

            return JpegImageFile(BytesIO(jpeg.bare(data)))
        case "WebP":
            from PIL.WebPImagePlugin import WebPImageFile

            return WebPImageFile(BytesIO(data))
        case "GIF":
            from PIL.GifImagePlugin import GifImageFile

            return GifImageFile(BytesIO(gif.bare(data, n_pixels)))
        case "BMP":
            return bmp.opened(data)
        case _:
            assert_never(kind)


@contextmanager
def _told_plainly(kind: Format) -> Iterator[None]:
    """Turn whatever a decoder raises on damaged files into the one error for them."""
    try:
        yield
    except InvalidMedia:
        raise
    except MemoryError as err:
        raise InvalidMedia(f"a {kind} file that takes too much memory", "a smaller one") from err
    except Exception as err:  # nearly any: OSError, SyntaxError, ValueError, struct.error, ...
        raise broken(kind, _reason(err)) from err


def _reason(err: Exception) -> str:
    said = str(err).splitlines()
    return said[0][:80] if said else type(err).__name__


def _rgb(image: "Image.Image", outline: Outline) -> Rgb:
    """Return red, green and blue, turned as EXIF asks for."""
    width, height = outline.width, outline.height
    rgb = np.empty((width, height, 3) if outline.is_turned else (height, width, 3), np.uint8)
    stored = _as_stored(rgb, outline.orientation)
    n_rows = max(1, STRIP_PIXELS // width)
    for top in range(0, height, n_rows):
        strip = image.crop((0, top, width, min(top + n_rows, height)))
        stored[top : top + n_rows] = _strip_rgb(strip)
    return rgb


def _as_stored(rgb: Rgb, orientation: int) -> Rgb:
    """Return a view of an image that is to be seen, with its pixels where the file has them."""
    view = rgb.swapaxes(0, 1) if orientation >= 5 else rgb
    flips_rows = orientation in (3, 4, 6, 7)
    flips_columns = orientation in (2, 3, 7, 8)
    return view[:: -1 if flips_rows else 1, :: -1 if flips_columns else 1]


def _strip_rgb(strip: "Image.Image") -> Rgb:
    if strip.mode.startswith("I;16"):  # grey; converting it would cut off all but the darkest
        grey = np.asarray(strip) >> 8
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    if "transparency" in strip.info or strip.mode in ("LA", "PA", "RGBA"):
        from PIL import Image

        seen = strip.convert("RGBA")
        strip = Image.new("RGB", seen.size, WHITE)
        strip.paste(seen, mask=seen)
    return np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))
