"""Files that are refused: what is the matter, and what was expected, in plain words."""

import struct
import sys
import zlib

import pytest
from PIL import Image

from runnerd.errors import InvalidMedia, Unsupported
from runnerd.media.images import decode, read_header
from tests.media.image_files import (
    KINDS,
    N_PIXELS,
    PNG_SIGNATURE,
    chunk,
    gif_frame,
    gif_screen,
    noise,
    png,
    saved,
)


def refusal(data: bytes, n_pixels: int = N_PIXELS) -> InvalidMedia:
    """Return why a file is refused before it is decoded."""
    with pytest.raises(InvalidMedia) as caught:
        read_header(data, n_pixels)
    return caught.value


def late_refusal(data: bytes) -> InvalidMedia:
    """Return why a file is refused that looks well from outside."""
    read_header(data, N_PIXELS)
    with pytest.raises(InvalidMedia) as caught:
        decode(data, N_PIXELS)
    return caught.value


def test_an_empty_file_is_refused() -> None:
    assert refusal(b"").fact == "an empty file"


@pytest.mark.parametrize(
    "data",
    [
        b"\x89",
        b"hello, this is no picture",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"<?xml version='1.0'?><svg/>",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"%PDF-1.7",
        b"8BPS\0\1",
        saved(noise(2, 2), "TIFF"),
        saved(noise(2, 2), "PPM"),
        saved(noise(2, 2), "TGA"),
        saved(noise(2, 2), "ICO"),
        saved(noise(2, 2), "JPEG2000"),
        b"RIFF\0\0\0\0WAVE",
    ],
)
def test_other_formats_are_refused_by_their_first_bytes(data: bytes) -> None:
    error = refusal(data)
    assert error.limit == "a PNG, JPEG, WebP, GIF or BMP file"
    assert data[:8].hex(" ") in error.fact


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_ends_anywhere_before_its_end_is_refused(kind: str) -> None:
    data = saved(noise(30, 20), kind)
    # The end of further frames does not matter, nor does what fills up the last row.
    n_least = len(data) - (2 if kind in ("GIF", "BMP") else 0)
    for n_bytes in range(n_least):
        with pytest.raises(InvalidMedia):
            decode(data[:n_bytes], N_PIXELS)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_half_a_file_is_said_to_end_early(kind: str) -> None:
    data = saved(noise(30, 20), kind)
    assert refusal(data[: len(data) // 2]).limit == "a whole file"


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_pixels_are_refused_with_both_numbers(kind: str) -> None:
    error = refusal(saved(noise(30, 20), kind), n_pixels=599)
    assert (error.fact, error.limit) == ("30 x 20 pixels", "at most 599 in all")


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_pixels_as_may_be_are_read(kind: str) -> None:
    assert decode(saved(noise(30, 20), kind), 600).shape == (20, 30, 3)


def test_a_side_without_pixels_is_refused() -> None:
    assert refusal(png(0, 5)).fact == "0 x 5 pixels"


def test_a_side_that_no_decoder_can_do_is_refused() -> None:
    assert refusal(png(1, 65536)).limit == "at most 65535 on each side"


def test_a_wrong_checksum_is_refused() -> None:
    data = bytearray(saved(noise(30, 20), "PNG"))
    data[len(data) // 2] ^= 1
    assert "checksum" in refusal(bytes(data)).fact


def test_random_pixels_behind_a_good_header_are_refused() -> None:
    header = struct.pack(">IIBBBBB", 30, 20, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", noise(30, 20).tobytes())
    data = PNG_SIGNATURE + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")
    assert late_refusal(data).fact.startswith("a broken PNG file")


def test_rows_that_are_missing_are_refused_and_not_black() -> None:
    assert late_refusal(png(10, 10, pixels=bytes(31 * 9))).limit == "a whole file"


def test_rows_that_are_missing_from_the_last_pass_are_refused() -> None:
    header = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 1)
    pixels = chunk(b"IDAT", zlib.compress(b"\0\x01" + b"\0\x02"))  # the passes before it
    data = PNG_SIGNATURE + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")
    assert late_refusal(data).limit == "a whole file"


@pytest.mark.parametrize(("depth", "colour"), [(8, 5), (3, 0), (0, 2)])
def test_pixels_of_no_known_kind_are_refused(depth: int, colour: int) -> None:
    assert "colour type" in late_refusal(png(1, 1, depth=depth, colour=colour)).fact


def test_a_png_without_pixels_is_refused() -> None:
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    data = PNG_SIGNATURE + chunk(b"IHDR", header) + chunk(b"IEND", b"")
    assert "no pixels" in refusal(data).fact


def test_a_png_with_a_chunk_that_must_be_understood_and_is_not_is_refused() -> None:
    assert "chunks that are known" in refusal(png(1, 1, before=[chunk(b"CgBI", b"")])).limit


def test_a_jpeg_without_a_picture_is_refused() -> None:
    assert "no picture" in refusal(b"\xff\xd8\xff\xe0\x00\x02\xff\xd9").fact


def test_a_jpeg_with_two_frames_is_refused() -> None:
    data = saved(noise(8, 8), "JPEG")
    at = data.index(b"\xff\xc0")
    assert "two frames" in refusal(data[:at] + data[at : at + 19] + data[at:]).fact


def test_a_gif_without_a_frame_is_refused() -> None:
    assert "no frame" in refusal(gif_screen(1, 1) + b";").fact


def test_a_frame_of_a_gif_without_pixels_is_refused() -> None:
    assert refusal(gif_screen(5, 5) + gif_frame(0, 1)).fact == "0 x 1 pixels"


def test_a_webp_that_does_not_begin_with_a_picture_is_refused() -> None:
    assert "picture" in refusal(b"RIFF\x20\0\0\0WEBPICCP" + bytes(40)).fact


def test_half_a_bmp_is_refused_when_it_is_decoded() -> None:
    data = saved(noise(30, 20), "BMP")
    assert "truncated" in late_refusal(data[: len(data) // 2]).fact


@pytest.mark.parametrize("packing", [1, 2])
def test_packed_bmps_are_refused(packing: int) -> None:
    data = bytearray(saved(noise(8, 8).convert("P"), "BMP"))
    struct.pack_into("<I", data, 30, packing)
    assert refusal(bytes(data)).limit == "one that is not"


@pytest.mark.parametrize(("n_header", "depth"), [(7, 24), (40, 5)])
def test_bmps_of_no_known_kind_are_refused(n_header: int, depth: int) -> None:
    data = bytearray(saved(noise(8, 8), "BMP"))
    struct.pack_into("<I", data, 14, n_header)
    struct.pack_into("<H", data, 28, depth)
    assert refusal(bytes(data)).fact.startswith("a broken BMP file")


def test_an_old_bmp_header_is_understood() -> None:
    row = bytes([1, 2, 3, 0])
    data = b"BM" + struct.pack("<IHHIIHHHH", 30, 0, 0, 26, 12, 1, 1, 1, 24) + row
    assert decode(data, N_PIXELS)[0, 0].tolist() == [3, 2, 1]


def test_without_pillow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for read in (read_header, decode):
        with pytest.raises(Unsupported, match=r"pip install 'runnerd\[vision\]'"):
            read(b"", N_PIXELS)


def test_a_declared_format_does_not_matter_but_the_bytes_do() -> None:
    data = PNG_SIGNATURE + saved(Image.new("RGB", (1, 1)), "JPEG")
    assert refusal(data).fact.startswith("a broken PNG file")
