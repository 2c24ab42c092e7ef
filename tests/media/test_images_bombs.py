"""Small files that unfold to much: refused at once, in little memory. Measured in a process."""

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.media.image_files import (
    N_PIXELS,
    PNG_SIGNATURE,
    chunk,
    gif_frame,
    gif_screen,
    noise,
    png,
    saved,
)

MOST_S = 0.5  # of its CPU: what else the machine does is not the matter
MOST_BYTES = 100 * 2**20
MUCH = 128 * 2**20

# Reads the files of a folder; says of each what came of it, how long it took, and the most memory
# there was so far, less that before all.
READ = f"""
import json, sys, time
from pathlib import Path
from runnerd.errors import InvalidMedia
from runnerd.media.images import decode, read_header
import PIL.GifImagePlugin, PIL.JpegImagePlugin, PIL.PngImagePlugin, PIL.WebPImagePlugin

def peak_bytes():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

before = peak_bytes()
for path in Path(sys.argv[1]).iterdir():
    data = path.read_bytes()
    started_at, fact, limit = time.process_time(), "", ""
    try:
        read_header(data, {N_PIXELS})
        decode(data, {N_PIXELS})
    except InvalidMedia as err:
        fact, limit = err.fact, err.limit
    took_s = time.process_time() - started_at
    print(json.dumps([path.name, fact, limit, took_s, peak_bytes() - before]))
"""


def packed_text(kind: bytes, head: bytes) -> bytes:
    """Return a PNG file with a text or profile that is small only as long as it is packed."""
    return png(
        1, 1, pixels=bytes(4), before=[chunk(kind, head + zlib.compress(bytes(MUCH), level=1))]
    )


def one_colour(width: int, height: int) -> bytes:
    """Return a whole PNG file of black pixels, a bit each."""
    return png(width, height, pixels=bytes((1 + (width + 7) // 8) * height), depth=1, colour=0)


def jpeg_of_scans(n_scans: int) -> bytes:
    """Return a progressive JPEG file that goes over its picture again and again."""
    data = saved(noise(64, 64), "JPEG", progressive=True)
    scan = data.rindex(b"\xff\xda")
    return data[:scan] + data[scan:-2] * n_scans + data[-2:]


def jpeg_header(width: int, height: int, before: bytes = b"") -> bytes:
    """Return a JPEG file up to its first scan."""
    frame = struct.pack(">HHBHHB", 0xFFC0, 11, 8, height, width, 1) + b"\x01\x11\0"
    return b"\xff\xd8" + before + frame


def webp_canvas(width: int, height: int, flags: int = 0) -> bytes:
    """Return a WebP file that promises a canvas."""
    sides = [struct.pack("<I", side - 1)[:3] for side in (width, height)]
    body = b"VP8X" + struct.pack("<II", 10, flags) + b"".join(sides) + b"ANIM" + bytes(10)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def bmp_header(width: int, height: int) -> bytes:
    """Return a BMP file without its pixels."""
    return struct.pack("<2sIIIIiiHHI20x", b"BM", 54, 0, 54, 40, width, height, 1, 24, 0)


BOMBS: dict[str, Callable[[], bytes]] = {
    "30000 x 30000": lambda: one_colour(30000, 30000),
    "65535 x 65535": lambda: png(65535, 65535)[:33],
    "2147483647 x 1 pixels": lambda: png(2**31 - 1, 1)[:33],
    "too many chunks": lambda: png(1, 1, before=[chunk(b"teXt", b"")] * 2**17),
    "scans": lambda: jpeg_of_scans(1000),
    "too many segments": lambda: jpeg_header(1, 1, b"\xff\xfe\0\2" * 2**20),
    "65535 x 65534": lambda: jpeg_header(65535, 65534),
    "ends early": lambda: b"\xff\xd8" + b"\xff" * 2**23,
    "16777216 x 16777216": lambda: webp_canvas(2**24, 2**24),
    "16383 x 16383": lambda: webp_canvas(16383, 16383, flags=0x02),
    "65533 x 65535": lambda: gif_screen(65533, 65535) + gif_frame(1, 1) + b";",
    "65534 x 65535": lambda: gif_screen(1, 1) + gif_frame(65534, 65535) + b";",
    "before its first frame": lambda: gif_screen(1, 1) + b"!\xfe\0" * 2**22 + gif_frame(1, 1),
    "2147483647 x 2147483648": lambda: bmp_header(2**31 - 1, -(2**31)),
}

HARMLESS: dict[str, Callable[[], bytes]] = {
    "zTXt": lambda: packed_text(b"zTXt", b"a\0\0"),
    "iTXt": lambda: packed_text(b"iTXt", b"a\0\1\0\0\0"),
    "iCCP": lambda: packed_text(b"iCCP", b"a\0\0"),
    "a GIF of ten thousand frames": lambda: gif_screen(1, 1) + gif_frame(1, 1) * 10_000 + b";",
    "more rows than there should be": lambda: png(1, 1, pixels=bytes(MUCH)),
    "text that is not packed": lambda: png(
        1, 1, pixels=bytes(4), before=[chunk(b"tEXt", b"a\0" + b"b" * 2**23)]
    ),
    "a chunk behind the end": lambda: png(1, 1, pixels=bytes(4)) + PNG_SIGNATURE * 2**20,
}


@dataclass(frozen=True)
class Said:
    """What the process said of a file."""

    fact: str
    limit: str
    took_s: float
    n_bytes: int


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    folder = tmp_path_factory.mktemp("bombs")
    for name, make in {**BOMBS, **HARMLESS}.items():
        folder.joinpath(name).write_bytes(make())
    command = [sys.executable, "-W", "error", "-c", READ, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    lines = map(json.loads, done.stdout.splitlines())
    return {name: Said(*figures) for name, *figures in lines}


@pytest.mark.parametrize("fact", BOMBS)
def test_a_bomb_is_refused_at_once_and_in_little_memory(fact: str, said: dict[str, Said]) -> None:
    assert fact in said[fact].fact
    assert said[fact].limit
    assert said[fact].took_s < MOST_S
    assert said[fact].n_bytes < MOST_BYTES


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_never_looked_at_does_no_harm(name: str, said: dict[str, Said]) -> None:
    assert said[name].fact == ""
    assert said[name].took_s < MOST_S
    assert said[name].n_bytes < MOST_BYTES
