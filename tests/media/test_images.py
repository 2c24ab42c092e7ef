"""Images that can be read: every format and kind of pixel, as it is to be seen."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from runnerd.media.images import Header, decode, media_id_of, read_header
from tests.media.image_files import (
    KINDS,
    N_PIXELS,
    PNG_SIGNATURE,
    chunk,
    gif_frame,
    gif_screen,
    noise,
    png,
    random_array,
    saved,
    with_orientation,
)


def reference(data: bytes) -> np.ndarray:
    with Image.open(BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_every_format_is_read_as_pillow_reads_it(kind: str) -> None:
    data = saved(noise(53, 37), kind)
    header = read_header(data, N_PIXELS)
    assert (header.format.upper(), header.width, header.height) == (kind, 53, 37)
    assert np.array_equal(decode(data, N_PIXELS), reference(data))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (10000, 1), (1, 10000)])
def test_the_most_extreme_shapes_are_read(kind: str, size: tuple[int, int]) -> None:
    data = saved(Image.new("RGB", size, (255, 0, 0)), kind)
    rgb = decode(data, N_PIXELS)
    assert rgb.shape == (size[1], size[0], 3)
    assert rgb[..., 0].min() > 240
    assert rgb[..., 1:].max() < 16


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_exif_data_say(kind: str, orientation: int) -> None:
    data = saved(noise(31, 23), kind, exif=with_orientation(orientation))
    rgb = decode(data, N_PIXELS)
    header = read_header(data, N_PIXELS)
    assert np.array_equal(rgb, reference(data))
    assert rgb.shape == (header.height, header.width, 3)


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        with_orientation(0),
        with_orientation(9),
        with_orientation(6)[:-8],
        b"nonsense" * 100,
    ],
)
def test_broken_exif_data_leave_a_picture_as_it_is(exif: bytes) -> None:
    image = noise(31, 23)
    for kind in ("PNG", "JPEG", "WEBP"):
        assert decode(saved(image, kind, exif=exif), N_PIXELS).shape == (23, 31, 3)


def test_grey_of_16_bits_is_scaled_and_not_clipped() -> None:
    grey = np.array([[0, 255, 256, 0x7FFF, 0x8000, 0xFFFF]], np.uint16)
    rgb = decode(saved(Image.fromarray(grey), "PNG"), N_PIXELS)
    assert rgb[0].tolist() == [[v] * 3 for v in (0, 0, 1, 127, 128, 255)]


@pytest.mark.parametrize(("colour", "n_channels"), [(2, 3), (4, 2), (6, 4)])
def test_colours_of_16_bits_are_scaled_and_not_clipped(colour: int, n_channels: int) -> None:
    wide = np.full(n_channels, 0xFFFF, ">u2")
    wide[0] = 0x8000
    data = png(1, 1, pixels=b"\0" + wide.tobytes(), depth=16, colour=colour)
    assert decode(data, N_PIXELS)[0, 0].tolist() == (
        [128] * 3 if n_channels == 2 else [128, 255, 255]
    )


def test_transparency_of_16_bit_colours_is_survived() -> None:
    key = chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))
    data = png(1, 1, pixels=b"\0" + bytes([0, 1, 0, 2, 0, 3]), depth=16, before=[key])
    assert decode(data, N_PIXELS).shape == (1, 1, 3)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_transparent_is_seen_on_white(kind: str) -> None:
    image = Image.new("RGBA", (3, 1))
    image.putdata([(255, 0, 0, 255), (255, 0, 0, 0), (0, 0, 0, 128)])
    options = {"lossless": True} if kind == "WEBP" else {}
    rgb = decode(saved(image, kind, **options), N_PIXELS)
    assert rgb[0].tolist() == [[255, 0, 0], [255, 255, 255], [127, 127, 127]]


def test_transparent_grey_is_seen_on_white() -> None:
    image = Image.new("LA", (2, 1))
    image.putdata([(10, 255), (10, 0)])
    assert decode(saved(image, "PNG"), N_PIXELS)[0].tolist() == [[10] * 3, [255] * 3]


@pytest.mark.parametrize("transparency", [1, bytes([255, 0])])
@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_colour_of_a_palette_is_seen_on_white(
    kind: str, transparency: int | bytes
) -> None:
    if kind == "GIF" and isinstance(transparency, bytes):
        transparency = 1
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    rgb = decode(saved(image, kind, transparency=transparency), N_PIXELS)
    assert rgb[0].tolist() == [[10, 20, 30], [255, 255, 255]]


@pytest.mark.parametrize("transparency", [(10, 20, 30), 7])
def test_a_transparent_colour_without_a_palette_is_seen_on_white(
    transparency: tuple[int, int, int] | int,
) -> None:
    image = Image.new("L" if isinstance(transparency, int) else "RGB", (1, 1), transparency)
    data = saved(image, "PNG", transparency=transparency)
    assert decode(data, N_PIXELS)[0, 0].tolist() == [255] * 3


def test_black_and_white_is_read() -> None:
    image = Image.new("1", (9, 1))
    image.putpixel((8, 0), 1)
    for kind in ("PNG", "BMP"):
        assert decode(saved(image, kind), N_PIXELS)[0, :, 0].tolist() == [0] * 8 + [255]


@pytest.mark.parametrize(
    "profile", [None, ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))]
)
def test_inks_become_colours(profile: ImageCms.ImageCmsProfile | None) -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    data = saved(image, "JPEG", icc_profile=profile.tobytes() if profile else None)
    assert decode(data, N_PIXELS)[0, 0].tolist() == [255, 0, 0]


def test_inks_stored_as_brightness_become_colours() -> None:
    # Y, Cb, Cr = 255, 0, 0 with no black are R, G, B = 75, 255, 28, which are the inks' inverse.
    data = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG")
    transform_at = data.index(b"Adobe") + 11
    data = data[:transform_at] + b"\x02" + data[transform_at + 1 :]
    assert np.abs(decode(data, N_PIXELS)[0, 0].astype(int) - [180, 0, 227]).max() <= 2


def test_a_progressive_jpeg_is_read() -> None:
    data = saved(noise(100, 80), "JPEG", progressive=True)
    assert np.array_equal(decode(data, N_PIXELS), reference(data))


def test_a_jpeg_with_another_picture_behind_is_its_first_picture() -> None:
    first = noise(40, 30)
    data = saved(first, "MPO", save_all=True, append_images=[noise(20, 10)])
    assert read_header(data, N_PIXELS) == Header("JPEG", 40, 30)
    assert np.array_equal(decode(data, N_PIXELS), reference(saved(first, "JPEG")))


def test_bytes_behind_a_picture_do_not_matter() -> None:
    image = noise(40, 30)
    for kind in ("PNG", "JPEG", "GIF", "BMP"):
        data = saved(image, kind)
        assert np.array_equal(decode(data + b"\xff\xda" * 1000, N_PIXELS), reference(data))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    assert decode(data, N_PIXELS)[0, 0].argmax() == 0


def test_a_gif_whose_frame_is_beyond_its_screen_grows() -> None:
    data = gif_screen(0, 0) + gif_frame(1, 1) + b";"
    assert read_header(data, N_PIXELS) == Header("GIF", 1, 1)
    assert decode(data, N_PIXELS).shape == (1, 1, 3)


def test_a_bmp_from_top_to_bottom_is_read() -> None:
    image = noise(7, 5)
    data = bytearray(saved(image.transpose(Image.Transpose.FLIP_TOP_BOTTOM), "BMP"))
    struct.pack_into("<i", data, 22, -5)
    assert np.array_equal(decode(bytes(data), N_PIXELS), np.asarray(image))


def test_a_png_written_in_passes_is_read() -> None:
    # Of a picture of 2 x 2 pixels three of the seven passes have some.
    rows = b"\0\x01" + b"\0\x02" + b"\0\x03\x04"
    header = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 1)
    pixels = chunk(b"IDAT", zlib.compress(rows))
    data = PNG_SIGNATURE + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")
    assert decode(data, N_PIXELS)[..., 0].tolist() == [[1, 2], [3, 4]]


def test_the_number_of_an_image_is_that_of_its_pixels_whatever_the_file() -> None:
    image = noise(20, 10)
    numbers = {media_id_of(decode(saved(image, kind), N_PIXELS)) for kind in ("PNG", "BMP")}
    assert len(numbers) == 1


def test_the_same_bytes_in_another_shape_are_another_image() -> None:
    rgb = random_array((30, 150, 3))
    numbers = {media_id_of(rgb), media_id_of(rgb.reshape(150, 30, 3))}
    assert len(numbers) == 2


def test_one_pixel_makes_another_image() -> None:
    rgb = random_array((30, 15, 3))
    changed = rgb.copy()
    changed[29, 14, 2] ^= 1
    assert media_id_of(changed) != media_id_of(rgb)


def test_the_number_of_an_image_has_63_bits() -> None:
    numbers = [media_id_of(random_array((2, 2, 3), seed)) for seed in range(100)]
    assert all(0 <= number < 2**63 for number in numbers)
    assert max(numbers) >= 2**62
