"""Files that were damaged at random are read, or refused, and nothing else."""

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.errors import InvalidMedia
from runnerd.media.images import decode, read_header
from tests.media.image_files import noise, saved, with_orientation

N_PIXELS = 2**16
IMAGE = noise(23, 17)
SEEDS = {
    "PNG": saved(IMAGE, "PNG", exif=with_orientation(6)),
    "PNG with a palette": saved(IMAGE.convert("P"), "PNG", transparency=bytes(range(256))),
    "JPEG": saved(IMAGE, "JPEG", exif=with_orientation(6)),
    "progressive JPEG": saved(IMAGE, "JPEG", progressive=True),
    "CMYK JPEG": saved(IMAGE.convert("CMYK"), "JPEG"),
    "two JPEGs": saved(IMAGE, "MPO", save_all=True, append_images=[IMAGE]),
    "WebP": saved(IMAGE, "WEBP", exif=with_orientation(6)),
    "lossless WebP": saved(IMAGE.convert("RGBA"), "WEBP", lossless=True),
    "moving WebP": saved(IMAGE, "WEBP", save_all=True, append_images=[IMAGE.rotate(90)]),
    "GIF": saved(IMAGE.convert("P"), "GIF", transparency=3),
    "BMP": saved(IMAGE, "BMP"),
    "BMP with a palette": saved(IMAGE.convert("P"), "BMP"),
}
VALUES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0")


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw a file with bytes changed, put in, taken out, or cut off; most of them at its head."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.one_of(st.integers(0, 64), st.integers(0, len(data))))
        new = draw(st.one_of(st.binary(max_size=8), st.sampled_from(VALUES)))
        gone = draw(st.sampled_from((0, len(new), len(new), 16, len(data))))
        data = data[:at] + new + data[at + gone :]
    return data


def with_right_checksums(data: bytes) -> bytes:
    """Return a PNG file whose checksums hide the damage."""
    mended = bytearray(data)
    at = 8
    while at + 12 <= len(mended):
        (length,) = struct.unpack_from(">I", mended, at)
        if at + 12 + length > len(mended):
            break
        checksum = zlib.crc32(mended[at + 4 : at + 8 + length])
        struct.pack_into(">I", mended, at + 8 + length, checksum)
        at += 12 + length
    return bytes(mended)


@pytest.mark.parametrize("name", SEEDS)
def test_a_damaged_file_is_an_image_or_invalid_media(name: str) -> None:
    @settings(max_examples=150, derandomize=True, database=None, deadline=None)
    @given(data=damaged(SEEDS[name]))
    def read(data: bytes) -> None:
        data = with_right_checksums(data) if name.startswith("PNG") else data
        try:
            header = read_header(data, N_PIXELS)
            rgb = decode(data, N_PIXELS)
        except InvalidMedia:
            return
        assert rgb.shape == (header.height, header.width, 3)

    read()


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    head=st.sampled_from(sorted(data[:n] for data in SEEDS.values() for n in (2, 8, 16, 32))),
    body=st.binary(max_size=200),
)
def test_random_bytes_behind_a_good_beginning_are_an_image_or_invalid_media(
    head: bytes, body: bytes
) -> None:
    with suppress(InvalidMedia):
        assert decode(head + body, N_PIXELS).ndim == 3
