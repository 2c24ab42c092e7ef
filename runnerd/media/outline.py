"""What the file of an image says of itself before any pixel is decoded, and what is refused then.

Whoever reads a file here reads what was sent by a stranger: every length may be a lie, and every
loop is bounded by a number of its own.
"""

from dataclasses import dataclass

from runnerd.errors import InvalidMedia

MOST_SIDE = 65535  # pixels; no decoder here can do more
TURNED = range(5, 9)  # orientations that swap the sides


@dataclass(frozen=True, slots=True)
class Outline:
    """An image as its file holds it: sides in pixels, and EXIF's number for how to turn it."""

    width: int
    height: int
    orientation: int = 1

    @property
    def is_turned(self) -> bool:
        """Whether its width becomes its height."""
        return self.orientation in TURNED


def check_size(width: int, height: int, n_pixels: int) -> None:
    """Refuse an image by its size alone.

    Raises:
        InvalidMedia: a side is 0 or too long, or it has more than `n_pixels` pixels.
    """
    fact = f"{width} x {height} pixels"
    if min(width, height) < 1:
        raise InvalidMedia(fact, "at least 1 on each side")
    if width * height > n_pixels:
        raise InvalidMedia(fact, f"at most {n_pixels} in all")
    if max(width, height) > MOST_SIDE:
        raise InvalidMedia(fact, f"at most {MOST_SIDE} on each side")


def cut_short(name: str) -> InvalidMedia:
    """Return the error for a file that ends before it is complete."""
    return InvalidMedia(f"a {name} file that ends early", "a whole file")


def broken(name: str, what: str) -> InvalidMedia:
    """Return the error for a file that contradicts its format."""
    return InvalidMedia(f"a broken {name} file ({what})", "a file that is intact")
