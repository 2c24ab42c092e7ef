"""Images with pixels: a grid of patches, read line by line, between tokens that mark it.

A row stands for a patch, which is `patch` pixels wide and high, or as much more as keeps the grid
within `n_most` rows. With `tiles` the grid is cut into so many bands of lines, as far as there
are lines, with a token between them.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

from runnerd.core.prompt import Group, ImagePart, media_key
from runnerd.engine.reference.options import ReferenceOptions

IMAGE_BEGIN, IMAGE_BREAK, IMAGE_END = 0xF8, 0xF9, 0xFA  # bytes that UTF-8 does not use


@dataclass(frozen=True, slots=True)
class Grid:
    """`n_x` patches in each line, and how many lines each band has."""

    n_x: int
    bands: tuple[int, ...]

    @property
    def n_y(self) -> int:
        """The lines of all bands."""
        return sum(self.bands)


class Tiling:
    """How images of any size become groups, with no more than `n_most` rows in an image."""

    def __init__(self, options: ReferenceOptions, n_most: int) -> None:
        self._n_most = n_most
        self._patch = options.patch
        self._n_tiles = options.tiles
        self._mrope = options.mrope
        self._one_pass = options.non_causal

    @property
    def n_inputs(self) -> int:
        """The most inputs of an image, with its marks."""
        return self._n_most + 1 + self._n_tiles

    def grid(self, width: int, height: int) -> Grid:
        """Return the patches of an image."""
        assert width > 0 < height, f"an image of {width} x {height} pixels"
        n_x, n_y = -(-width // self._patch), -(-height // self._patch)
        if n_x * n_y > self._n_most:
            # Both sides by the same factor; what is left of a thin image is one line.
            n_x, n_y = (
                max(isqrt(n_x * self._n_most // n_y), 1),
                max(isqrt(n_y * self._n_most // n_x), 1),
            )
            n_x, n_y = min(n_x, self._n_most), min(n_y, self._n_most)
        n_bands = min(self._n_tiles, n_y)
        ends = [band * n_y // n_bands for band in range(n_bands + 1)]
        return Grid(n_x, tuple(stop - start for start, stop in pairwise(ends)))

    def expand(self, image: ImagePart, inputs: list[int], groups: list[Group]) -> None:
        """Append an image's inputs and groups."""
        grid = self.grid(image.width, image.height)
        start = len(inputs)
        stop = start + grid.n_x * grid.n_y + len(grid.bands) + 1
        row0 = 0
        for band, n_lines in enumerate(grid.bands):
            inputs.append(IMAGE_BREAK if band else IMAGE_BEGIN)
            first, n_rows = len(inputs), grid.n_x * n_lines
            group = Group(
                start=first,
                stop=first + n_rows,
                n_pos=max(grid.n_x, n_lines) if self._mrope else n_rows,
                media_id=image.media_id,
                one_pass=self._one_pass,
                row0=row0,
                encoded=True,
                lead=first - start,
                trail=stop - first - n_rows,
            )
            groups.append(group)
            inputs.extend(media_key(image.media_id, row) for row in range(row0, row0 + n_rows))
            row0 += n_rows
        inputs.append(IMAGE_END)
