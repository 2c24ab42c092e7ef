"""PNG files: what their chunks say, and nothing but the pixels for the decoder.

Source: the PNG specification, third edition, W3C.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence

from runnerd.errors import InvalidMedia
from runnerd.media import exif
from runnerd.media.outline import Outline, broken, check_size, cut_short

NAME = "PNG"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
FIRST = b"\0\0\0\x0dIHDR"
N_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
CRITICAL = {b"IHDR", b"PLTE", b"IDAT", b"IEND"}
KEPT = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
# Column and row where each pass begins, and the strides between its pixels.
PASSES = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)

MOST_CHUNKS = 2**16  # pixels come in chunks of 8 KiB or more
PIECE_BYTES = 2**16  # unpacked at once, of what is packed


def read_outline(data: bytes, n_pixels: int) -> Outline:
    """Return what a PNG file says of itself.

    Raises:
        InvalidMedia: it is broken or beyond the limits; whether its pixels are whole is not seen.
        struct.error: it ends early.
    """
    if data[8:16] != FIRST:
        raise broken(NAME, "it does not begin with a header")
    width, height = struct.unpack_from(">II", data, 16)
    check_size(width, height, n_pixels)
    turned = exif.UPRIGHT
    has_pixels = False
    for kind, chunk in _chunks(data):
        if kind == b"IDAT":
            has_pixels = True
        elif kind == b"eXIf":
            turned = exif.orientation(bytes(chunk[8:-4]))
    if not has_pixels:
        raise broken(NAME, "it has no pixels")
    return Outline(width, height, turned)


def bare(data: bytes) -> bytes:
    """Return a file that was looked at without whatever is no pixel: texts may unpack to much.

    Raises:
        InvalidMedia: pixels are missing, which a decoder would leave black.
        zlib.error: what is packed is damaged.
    """
    chunks = [(kind, chunk) for kind, chunk in _chunks(data) if kind in KEPT]
    _check_pixels(data, [chunk[8:-4] for kind, chunk in chunks if kind == b"IDAT"])
    return b"".join([SIGNATURE, *(chunk for _, chunk in chunks)])


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield chunks with all that belongs to them, to the last one, each intact."""
    view = memoryview(data)
    start = len(SIGNATURE)
    for _ in range(MOST_CHUNKS):
        length, kind = struct.unpack_from(">I4s", data, start)
        stop = start + 12 + length
        (checksum,) = struct.unpack_from(">I", data, stop - 4)
        if zlib.crc32(view[start + 4 : stop - 4]) != checksum:
            raise broken(NAME, f"the checksum of a chunk at byte {start} is wrong")
        if not kind[0] & 0x20 and kind not in CRITICAL:
            raise InvalidMedia(f"a PNG file with a chunk {kind!r}", "chunks that are known")
        yield kind, view[start:stop]
        if kind == b"IEND":
            return
        start = stop
    raise InvalidMedia("a PNG file of too many chunks", f"at most {MOST_CHUNKS}")


def _check_pixels(data: bytes, packed: Sequence[memoryview]) -> None:
    n_missing = _n_pixel_bytes(data)
    unpacker = zlib.decompressobj()
    pieces = (
        part[at : at + PIECE_BYTES] for part in packed for at in range(0, len(part), PIECE_BYTES)
    )
    for piece in pieces:
        tail: bytes | memoryview = piece
        while len(tail) and n_missing > 0 and not unpacker.eof:
            n_missing -= len(unpacker.decompress(tail, 4 * PIECE_BYTES))
            tail = unpacker.unconsumed_tail
        if n_missing <= 0:
            return
        if unpacker.eof:
            break
    raise cut_short(NAME)


def _n_pixel_bytes(data: bytes) -> int:
    """Return how many bytes all rows have, each with the number of its filter."""
    width, height, depth, colour, _, _, is_interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    n_channels = N_CHANNELS.get(colour)
    if n_channels is None or depth not in (1, 2, 4, 8, 16):
        raise broken(NAME, f"there is no colour type {colour} of {depth} bits")
    n_bits = n_channels * depth
    n_bytes = 0
    for x, y, dx, dy in PASSES if is_interlaced else ((0, 0, 1, 1),):
        columns, rows = -((x - width) // dx), -((y - height) // dy)
        n_bytes += rows * (1 + (columns * n_bits + 7) // 8) if min(columns, rows) > 0 else 0
    return n_bytes
