"""The sizes that images may have, by what pictures of them take; no model is needed."""

from collections.abc import Callable

import pytest

from runnerd.engine.llama.largest_image import MAX_PIXELS, MAX_RATIO, check_size, find_largest
from runnerd.engine.llama.picture import Picture, RowRun
from runnerd.errors import BadModel, ConfigError, InvalidMedia

MARKS = (7,)


def picture(*n_rows: int) -> Picture:
    """Return a picture of tiles, with a mark before each."""
    return Picture(tuple(part for n in n_rows for part in (MARKS, RowRun(n, n, one_pass=False))))


def by_area(width: int, height: int) -> Picture:
    """A row for each 16 x 16 pixels, whatever the size."""
    return picture(max(1, width * height // 256))


def in_tiles(width: int, height: int) -> Picture:
    """A tile of four rows for each 64 x 64 pixels, whatever the size."""
    return picture(*[4] * max(1, width * height // 64**2))


def test_the_largest_image_is_the_smallest_of_those_with_the_most_rows() -> None:
    largest = find_largest("p", 4096, lambda width, height: picture(min(width, 512)))
    assert largest.picture == picture(512)
    assert (largest.width, largest.n_inputs) == (512, 513)
    assert largest.height <= 64


@pytest.mark.parametrize("picture_of", [by_area, in_tiles])
@pytest.mark.parametrize("n_ctx", [64, 256, 2048])
def test_the_largest_image_fits_in_the_context_though_larger_ones_exist(
    picture_of: Callable[[int, int], Picture], n_ctx: int
) -> None:
    largest = find_largest("p", n_ctx, picture_of)
    assert n_ctx / 2 < largest.picture.n_inputs < n_ctx
    assert largest.n_inputs == n_ctx - 1
    assert largest.n_inputs_trained > n_ctx


def test_only_sizes_are_tried_that_libmtmd_survives() -> None:
    tried: list[tuple[int, int]] = []

    def picture_of(width: int, height: int) -> Picture:
        tried.append((width, height))
        return picture(1)

    find_largest("p", 256, picture_of)
    assert len(tried) > 100
    for size in tried:
        check_size(*size)


def test_tiles_without_bounds_are_not_counted_for_every_size() -> None:
    n_tiles: list[int] = []

    def picture_of(width: int, height: int) -> Picture:
        found = in_tiles(width, height)
        n_tiles.append(len(found.runs))
        return found

    find_largest("p", 512, picture_of)
    assert sum(n_tiles) < 100_000  # of every size it would be more than a million


def test_where_no_image_fits_in_the_context_both_numbers_are_told() -> None:
    with pytest.raises(ConfigError, match="p: an image takes 65 inputs, the context holds 65"):
        find_largest("p", 65, lambda width, height: picture(64))


def test_a_projector_that_takes_no_image_is_refused() -> None:
    with pytest.raises(BadModel, match="p: the projector takes no image of any size"):
        find_largest("p", 256, lambda width, height: None)


@pytest.mark.parametrize(
    ("width", "height"),
    [(0, 1), (1, 0), (MAX_RATIO + 1, 1), (1, MAX_RATIO + 1), (MAX_PIXELS // 1024 + 1, 1024)],
)
def test_a_size_beyond_the_bounds_is_refused(width: int, height: int) -> None:
    with pytest.raises(InvalidMedia, match=f"{width} x {height} pixels"):
        check_size(width, height)


def test_sizes_at_the_bounds_are_taken() -> None:
    for width, height in ((1, 1), (MAX_RATIO, 1), (1, MAX_RATIO), (MAX_PIXELS // 1024, 1024)):
        check_size(width, height)
