"""JPEG files: what their segments say, and nothing but the picture for the decoder.

Source: ITU-T T.81, annex B.
"""

import re
import struct
from collections.abc import Iterator

from runnerd.errors import InvalidMedia
from runnerd.media import exif
from runnerd.media.outline import Outline, broken, check_size, cut_short

NAME = "JPEG"
SIGNATURE = b"\xff\xd8\xff"
EOI, SOS = 0xD9, 0xDA
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF
EXIF, ADOBE = 0xE1, 0xEE
DROPPED = {0xFE, *range(0xE1, 0xF0)} - {ADOBE}  # which says what the colours are
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")  # but those without a length, and restarts

MOST_SEGMENTS = 4096
MOST_SCANS = 100  # encoders make about ten; each goes over the whole picture
LOOKED_AT = 2**20  # bytes searched at once: milliseconds, in which no other thread runs


def read_outline(data: bytes, n_pixels: int) -> Outline:
    """Return what a JPEG file says of itself. Further pictures in it do not matter.

    Raises:
        InvalidMedia: it is broken or beyond the limits.
        struct.error, IndexError: it ends early.
    """
    size: tuple[int, int] | None = None
    turned = exif.UPRIGHT
    n_scans = 0
    for marker, start, stop in _segments(data):
        if marker in FRAMES:
            if size is not None:
                raise broken(NAME, "it has two frames")
            height, width = struct.unpack_from(">HH", data, start + 5)
            check_size(width, height, n_pixels)
            size = (width, height)
        elif marker == EXIF and data[start + 4 : start + 10] == exif.PREFIX:
            turned = exif.orientation(data[start + 4 : stop])
        elif marker == SOS:
            n_scans += 1
    if size is None or n_scans == 0:
        raise broken(NAME, "it has no picture")
    if n_scans > MOST_SCANS:
        raise InvalidMedia(f"a JPEG file of {n_scans} scans", f"at most {MOST_SCANS}")
    return Outline(*size, turned)


def bare(data: bytes) -> bytes:
    """Return a file that was looked at without whatever does not say how to decode it."""
    view = memoryview(data)
    pieces = [view[:2]]
    scans_at = end = len(data)
    for marker, start, stop in _segments(data):
        end = stop
        if marker == SOS:
            scans_at = min(scans_at, start)
        elif start < scans_at and marker not in DROPPED:
            pieces.append(view[start:stop])
    return b"".join([*pieces, view[scans_at:end]])


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each segment's marker, start and stop, to the end of the picture."""
    at = 2
    for _ in range(MOST_SEGMENTS):
        start = _next_marker(data, at)
        marker = data[start + 1]
        if marker == EOI:
            yield marker, start, start + 2
            return
        (length,) = struct.unpack_from(">H", data, start + 2)
        at = start + 2 + length
        if length < 2 or at > len(data):
            raise cut_short(NAME)
        yield marker, start, at
    raise InvalidMedia("a JPEG file of too many segments", f"at most {MOST_SEGMENTS}")


def _next_marker(data: bytes, at: int) -> int:
    """Return where the next marker is, over packed pixels and whatever else fills the gap."""
    while at < len(data):
        found = MARKER.search(data, at, at + LOOKED_AT + 1)
        if found is not None:
            return found.start()
        at += LOOKED_AT
    raise cut_short(NAME)
