"""Images of any shape, in which equal ids mean equal images."""

from tests.helpers import Image


def make_image(name: int, n_rows: int, n_pos: int, n_tiles: int, flags: int) -> Image:
    """Return an image whose id says all about it; the `flags` are three bits."""
    media_id = ((name * 50 + n_rows) * 50 + n_pos) * 50 + n_tiles
    return Image(
        media_id=media_id * 8 + flags,
        n_rows=n_rows,
        n_pos=n_pos,
        one_pass=bool(flags & 1),
        encoded=bool(flags & 2),
        n_tiles=n_tiles,
        has_marks=bool(flags & 4),
    )
