"""GIF files: their first frame, and nothing else for the decoder.

Source: GIF89a specification, CompuServe.
"""

import struct
from dataclasses import dataclass

from runnerd.errors import InvalidMedia
from runnerd.media.outline import Outline, broken, check_size

NAME = "GIF"
SIGNATURES = (b"GIF87a", b"GIF89a")
SCREEN_AT, PALETTE_AT = 6, 13
EXTENSION, CONTROL, FRAME = 0x21, 0xF9, 0x2C
HAS_PALETTE, IS_TRANSPARENT = 0x80, 0x01
MOST_BLOCKS = 2**16  # before the first frame: comments come in blocks of 255 bytes


@dataclass(frozen=True, slots=True)
class _First:
    """The first frame: where it is, what it makes of the screen, and which index is no colour."""

    start: int
    palette_stop: int
    width: int
    height: int
    transparent: int | None


def read_outline(data: bytes, n_pixels: int) -> Outline:
    """Return what a GIF file says of itself.

    Raises:
        InvalidMedia: it is broken or beyond the limits.
        struct.error, IndexError: it ends early.
    """
    first = _first_frame(data, n_pixels)
    return Outline(first.width, first.height)


def bare(data: bytes, n_pixels: int) -> bytes:
    """Return a file that was looked at without whatever is before the first frame."""
    first = _first_frame(data, n_pixels)
    view = memoryview(data)
    pieces: list[bytes | memoryview] = [
        view[:SCREEN_AT],
        struct.pack("<HH", first.width, first.height),
        view[SCREEN_AT + 4 : first.palette_stop],
    ]
    if first.transparent is not None:
        pieces.append(bytes([EXTENSION, CONTROL, 4, IS_TRANSPARENT, 0, 0, first.transparent, 0]))
    return b"".join([*pieces, view[first.start :]])


def _first_frame(data: bytes, n_pixels: int) -> _First:
    screen_width, screen_height, flags = struct.unpack_from("<HHB", data, SCREEN_AT)
    # Some encoders leave the screen 0 x 0, and every decoder grows it to the frame.
    check_size(max(screen_width, 1), max(screen_height, 1), n_pixels)
    at = palette_stop = PALETTE_AT + (3 << (flags & 7) + 1 if flags & HAS_PALETTE else 0)
    transparent: int | None = None
    n_blocks = 0
    while data[at] == EXTENSION:
        if data[at + 1] == CONTROL and data[at + 2] == 4:
            transparent = data[at + 6] if data[at + 3] & IS_TRANSPARENT else None
        at += 2
        length = -1
        while length:
            n_blocks += 1
            if n_blocks > MOST_BLOCKS:
                fact = "a GIF file with too much before its first frame"
                raise InvalidMedia(fact, f"at most {MOST_BLOCKS} blocks")
            length = data[at]
            at += 1 + length
    if data[at] != FRAME:
        raise broken(NAME, f"there is no frame at byte {at}")
    x, y, width, height = struct.unpack_from("<HHHH", data, at + 1)
    check_size(width, height, n_pixels)
    right, bottom = max(screen_width, x + width), max(screen_height, y + height)
    check_size(right, bottom, n_pixels)
    return _First(at, palette_stop, right, bottom, transparent)
