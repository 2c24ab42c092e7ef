"""Small image files for tests that care about what becomes of them, not how they are read."""

from hashlib import sha256
from io import BytesIO

from PIL import Image

from runnerd.media.files import Picture
from runnerd.media.store import Lease


def drawn(number: int, width: int = 24, height: int = 16, kind: str = "PNG") -> bytes:
    """Return a file that shows a colour of its own for each number."""
    image = Image.new("RGB", (width, height), (number % 256, number // 256 % 256, 7))
    file = BytesIO()
    image.save(file, kind)
    return file.getvalue()


async def add(lease: Lease, data: bytes) -> Picture:
    """Keep a file and return what is in it."""
    digest = sha256(data).digest()
    assert lease.hold(digest, data)
    return await lease.read(digest)
