"""The sizes that images may have, and the one of them that takes the most."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from runnerd.engine.llama.picture import Picture
from runnerd.errors import BadModel, ConfigError, InvalidMedia

# Where a side would be less than a patch it is stretched, and the image takes more rows than one
# of any other shape; some projectors cut it into tiles without bounds.
MAX_RATIO = 200
MAX_PIXELS = 1 << 27  # libmtmd counts in int32 what sides give that are rounded up
# Sides of images in pixels, and how often the longer one is as long as the shorter one. A projector
# that takes any size has made the most rows it makes at one of the largest, which leaves the ratio.
SIDES = (64, 128, 224, 256, 336, 384, 448, 512, 768, 896, 1024, 1536, 2048, 4096)
RATIOS = (1.0, 5 / 4, 4 / 3, 3 / 2, 16 / 9, 2.0, 3.0, 4.0, 8.0, 16.0)
FINE_RATIOS = tuple(1.02**power for power in range(150))
LARGE_SIDE = 4096
N_TILES = 256  # an image of so many parts is of a projector that knows no bound


@dataclass(frozen=True, slots=True)
class LargestImage:
    """The image that takes the most rows of a context that it fits in.

    `n_inputs` is what no image exceeds that fits. Of the images that were tried and do not, some
    take `n_inputs_trained` inputs, or `n_rows_trained` rows.
    """

    width: int
    height: int
    picture: Picture
    n_inputs: int
    n_inputs_trained: int
    n_rows_trained: int


def check_size(width: int, height: int) -> None:
    """Refuse what libmtmd might not survive.

    Raises:
        InvalidMedia: with the size.
    """
    fact = f"{width} x {height} pixels"
    if min(width, height) < 1 or width * height > MAX_PIXELS:
        raise InvalidMedia(fact, f"1 to {MAX_PIXELS} pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidMedia(fact, f"a side at most {MAX_RATIO} times as long as the other")


def find_largest(
    path: str, n_ctx: int, picture_of: Callable[[int, int], Picture | None]
) -> LargestImage:
    """Look among many sizes for the smallest that takes the most of a context.

    Raises:
        BadModel: the projector at this path takes no image of any size.
        ConfigError: none fits in the context.
    """
    found: tuple[tuple[int, int], Picture] | None = None
    n_inputs: list[int] = []
    n_rows_trained = 0
    beyond: list[tuple[int, int]] = []
    for size in _sizes():
        if any(size[0] >= width and size[1] >= height for width, height in beyond):
            continue  # to count ever more tiles takes minutes
        picture = picture_of(*size)
        if picture is None:
            continue
        n_inputs.append(picture.n_inputs)
        n_rows_trained = max(n_rows_trained, picture.n_rows)
        fits = picture.n_inputs < n_ctx
        if not fits and len(picture.parts) > N_TILES:
            beyond.append(size)
        if fits and (found is None or picture.n_rows > found[1].n_rows):
            found = size, picture
    if not n_inputs:
        raise BadModel(f"{path}: the projector takes no image of any size")
    if found is None:
        raise ConfigError(
            f"{path}: an image takes {min(n_inputs)} inputs, the context holds {n_ctx}"
        )
    (width, height), picture = found
    n_most = max(n_inputs)
    return LargestImage(width, height, picture, min(n_most, n_ctx - 1), n_most, n_rows_trained)


def _sizes() -> list[tuple[int, int]]:
    sizes = [(round(side * ratio), side) for side in SIDES for ratio in RATIOS]
    sizes += [(LARGE_SIDE, round(LARGE_SIDE / ratio)) for ratio in FINE_RATIOS]
    sizes += [(height, width) for width, height in sizes]
    return sorted((size for size in set(sizes) if prod(size) <= MAX_PIXELS), key=prod)
