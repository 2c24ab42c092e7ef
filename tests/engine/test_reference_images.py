"""Images with pixels on the reference engine: grids, rows, faults, and logits to the last bit."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runnerd.core.batch import Batch, BatchKind, Span
from runnerd.core.prompt import Group, ImagePart, Part, TextPart, media_key
from runnerd.engine.base import EncodedImage, Pixels
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions, parse_options
from runnerd.engine.reference.images import IMAGE_BEGIN, IMAGE_BREAK, IMAGE_END, Tiling
from runnerd.errors import ConfigError, DecodeAborted, EngineFailed
from tests.engine.driving import tokens
from tests.engine.feeding import Feed, encoded, feed_to, gone_on, looked, picture, prompt_of
from tests.engine.oracle import Oracle
from tests.engine.reference_builders import SMALL, open_greedy, reference, row

RED = picture(1, (255, 0, 0), width=48, height=40)
BLUE = picture(2, (0, 0, 255), (0, 255, 0), width=20, height=70)
CAUSAL = replace(SMALL, non_causal=False)
KINDS = {
    "no layers": ReferenceOptions(layers=0, dim=16),
    "one layer": ReferenceOptions(layers=1, dim=16, heads=2),
    "non-causal": SMALL,
    "causal tiles": replace(CAUSAL, tiles=2),
    "m-rope tiles": replace(SMALL, mrope=True, tiles=3),
    "causal m-rope": replace(CAUSAL, mrope=True, patch=8),
    "window": replace(SMALL, window=5, full_layers=0),
    "m-rope in a window": replace(CAUSAL, window=5, mrope=True),
    "recurrent": replace(SMALL, layers=3, window=5, recurrent=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_after_images_equal_the_oracle(kind: str) -> None:
    options = KINDS[kind]
    with reference(options) as engine:
        media = encoded(engine, [RED, BLUE])
        prompt = prompt_of(engine, "see ", RED, "and", BLUE, "!")
        looked(engine, prompt, media)
        assert row(engine) == Oracle(options, media=media).feed_prompt(prompt)


def test_named_images_and_those_with_pixels_can_share_a_prompt() -> None:
    with reference() as engine:
        named = TextPart("<image:5:2:x>", special=True)
        parts: list[Part] = [named, ImagePart(1, 48, 40), TextPart("!")]
        prompt, media = engine.expand(parts), encoded(engine, [RED])
        looked(engine, prompt, media)
        assert row(engine) == Oracle(SMALL, media=media).feed_prompt(prompt)


# --- layout --------------------------------------------------------------------------------


def test_an_image_is_a_grid_of_patches_between_its_marks() -> None:
    with reference() as engine:
        prompt = engine.expand([TextPart("a"), ImagePart(9, 48, 40)], add_bos=False)
        assert engine.model.n_image_rows == 64 + 2
    keys = tuple(media_key(9, row) for row in range(9))
    assert prompt.inputs == (ord("a"), IMAGE_BEGIN, *keys, IMAGE_END)
    assert prompt.groups == (Group(2, 11, 9, 9, True, encoded=True, lead=1, trail=1),)


def test_tiles_are_bands_of_lines_with_a_token_between_them() -> None:
    with reference(replace(CAUSAL, tiles=2)) as engine:
        prompt = engine.expand([ImagePart(9, 48, 40)], add_bos=False)
    upper, lower = prompt.groups
    assert upper == Group(1, 4, 3, 9, False, row0=0, encoded=True, lead=1, trail=8)
    assert lower == Group(5, 11, 6, 9, False, row0=3, encoded=True, lead=5, trail=1)
    assert [prompt.inputs[i] for i in (0, 4, 11)] == [IMAGE_BEGIN, IMAGE_BREAK, IMAGE_END]


def test_with_mrope_an_image_takes_the_positions_of_its_longer_side() -> None:
    with reference(replace(CAUSAL, mrope=True)) as engine:
        prompt = engine.expand([ImagePart(9, 100, 40), TextPart("b")], add_bos=False)
        assert not engine.limits.can_shift
    (group,) = prompt.groups
    assert (group.n_inputs, group.n_pos) == (7 * 3, 7)
    assert prompt.layout.position(len(prompt.inputs) - 1) == 1 + 7 + 1


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((16, 16), (1, 1)),
        ((17, 16), (2, 1)),
        ((160, 160), (8, 8)),
        ((320, 80), (16, 4)),
        ((10000, 1), (64, 1)),
        ((1, 10000), (1, 64)),
        ((10000, 20), (64, 1)),
        ((30000, 30000), (8, 8)),
    ],
)
def test_a_grid_is_made_smaller_until_its_rows_fit(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    grid = Tiling(SMALL, n_most=64).grid(*size)
    assert (grid.n_x, grid.n_y) == expected


@given(
    width=st.integers(1, 20_000),
    height=st.integers(1, 20_000),
    n_most=st.integers(1, 300),
    tiles=st.integers(1, 16),
)
def test_every_image_has_a_grid_that_fits(width: int, height: int, n_most: int, tiles: int) -> None:
    grid = Tiling(replace(SMALL, tiles=tiles), n_most).grid(width, height)
    assert 1 <= grid.n_x * grid.n_y <= n_most
    assert grid.n_x <= width
    assert grid.n_y <= height
    assert min(grid.bands) >= 1
    assert len(grid.bands) <= tiles


# --- rows ----------------------------------------------------------------------------------


def encode_one(
    engine: ReferenceEngine, rgb: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> EncodedImage:
    return encoded(engine, [Pixels(1, rgb)])[1]


@given(pixel=st.tuples(st.integers(0, 39), st.integers(0, 47), st.integers(0, 2)))
def test_a_single_pixel_changes_the_row_of_its_patch_and_no_other(
    pixel: tuple[int, int, int],
) -> None:
    changed = RED.rgb.copy()
    changed[pixel] ^= 1
    with reference() as engine:
        rows, others = encode_one(engine, RED.rgb).rows, encode_one(engine, changed).rows
    y, x, _ = pixel
    differing = np.flatnonzero((rows != others).any(axis=1)).tolist()
    lines, columns = (0, 13, 26, 40), (0, 16, 32, 48)
    line = max(n for n in range(3) if lines[n] <= y)
    column = max(n for n in range(3) if columns[n] <= x)
    assert differing == [3 * line + column]


def test_equal_patches_differ_by_their_place_and_equal_bytes_by_their_shape() -> None:
    flat = np.zeros((30, 150, 3), np.uint8)
    with reference() as engine:
        wide, high = encode_one(engine, flat), encode_one(engine, flat.reshape(150, 30, 3))
    rows = {tuple(row) for image in (wide, high) for row in image.rows.tolist()}
    assert len(rows) == len(wide.rows) + len(high.rows) == 40


def test_rows_are_whole_numbers_that_float32_holds() -> None:
    with reference(ReferenceOptions(dim=64)) as engine:
        rows = encode_one(engine, RED.rgb).rows
    assert np.array_equal(rows, np.rint(rows))
    assert np.abs(rows).max() < 2**24


def test_an_encoded_causal_image_is_stored_in_part_where_a_decode_is_stopped() -> None:
    with reference(CAUSAL, n_ubatch=8) as engine:
        media = encoded(engine, [BLUE])
        prompt = prompt_of(engine, BLUE, "!")
        expected = looked(engine, prompt, media, slot_id=1)
        feed = Feed(0, prompt, media)
        feed_to(engine, feed, prompt.groups[0].start)
        kind, span = feed.advance(1000)
        engine.faults.abort_after(1)
        with pytest.raises(DecodeAborted) as caught:
            engine.decode(Batch(kind, (span,)))
        assert caught.value.n_stored == (8,)
        rest = Feed(0, prompt, media, prompt.groups[0].start + 8)
        assert gone_on(engine, [rest]) == [expected]


def test_encoded_rows_that_go_on_elsewhere_are_a_bug() -> None:
    with reference(CAUSAL) as engine:
        media = encoded(engine, [RED])
        key = media_key(1, 4)
        span = Span(0, 0, 0, (key,), media_id=1, row0=4, media=media[1])
        with pytest.raises(AssertionError, match="slot 0: row after 4, next is 0"):
            engine.decode(Batch(BatchKind.MEDIA, (span,)))


def test_rows_across_a_border_of_tiles_are_a_bug() -> None:
    with reference(replace(CAUSAL, tiles=3)) as engine:
        media = encoded(engine, [RED])
        keys = tuple(media_key(1, row) for row in range(4))
        span = Span(0, 0, 0, keys, media_id=1, media=media[1])
        with pytest.raises(AssertionError, match="rows 0 to 4, the group ends at 3"):
            engine.decode(Batch(BatchKind.MEDIA, (span,)))


# --- options and faults --------------------------------------------------------------------


def test_a_model_without_images_refuses_a_projector() -> None:
    with pytest.raises(ConfigError, match=r"images=0 with a projector, eye\.gguf"):
        with reference(parse_options("images=0"), mmproj="eye.gguf"):
            pass
    with reference(mmproj="eye.gguf") as engine:
        assert engine.model.n_image_rows > 0


@pytest.mark.parametrize(
    ("options", "n_image_rows", "expected"),
    [(SMALL, 0, 64), (SMALL, 40, 40), (CAUSAL, 0, 256), (CAUSAL, 300, 300)],
)
def test_an_image_has_as_many_rows_as_are_allowed_and_fit_where_they_must(
    options: ReferenceOptions, n_image_rows: int, expected: int
) -> None:
    with reference(options, n_image_rows=n_image_rows) as engine:
        assert engine.model.n_image_rows == expected + 2
        prompt = engine.expand([ImagePart(1, 10_000, 10_000)], add_bos=False)
    assert expected - 32 <= len(prompt.inputs) - 2 <= expected


def test_more_rows_than_go_through_the_model_at_once_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"images of 65 rows .* takes 64"):
        with reference(n_image_rows=65):
            pass


def test_the_option_fail_encode_at_fails_one_image() -> None:
    with reference(parse_options("fail_encode_at=2")) as engine:
        first, second, third = engine.encode([RED, RED, BLUE])
        assert isinstance(first, EncodedImage)
        assert isinstance(second, EngineFailed)
        assert "image 2" in str(second)
        assert isinstance(third, EncodedImage)
        engine.faults.fail_encode()
        assert isinstance(engine.encode([RED])[0], EngineFailed)
        assert isinstance(engine.encode([RED])[0], EncodedImage)


@pytest.mark.parametrize("by_option", [True, False])
@pytest.mark.parametrize("by_close", [True, False])
def test_an_encode_hangs_until_released_or_closed_while_decodes_go_on(
    by_option: bool, by_close: bool
) -> None:
    with reference(replace(SMALL, hang_encode_at=int(by_option))) as engine:
        if not by_option:
            engine.faults.hang_encode()
        thread = threading.Thread(target=engine.encode, args=([RED],))
        thread.start()
        assert engine.faults.encode_hanging.wait(5)
        with pytest.raises(AssertionError, match="at the same time"):
            engine.encode([BLUE])
        open_greedy(engine, 0)
        engine.decode(Batch(BatchKind.TOKENS, (Span(0, 0, 0, tokens(engine, "hi"), True),)))
        assert thread.is_alive()
        (engine.close if by_close else engine.faults.release)()
        thread.join(5)
        assert not thread.is_alive()
        assert not engine.faults.encode_hanging.is_set()


def test_a_slow_encode_takes_its_time_for_each_image() -> None:
    with reference(ReferenceOptions(encode_ms=20)) as engine:
        started_at = time.monotonic()
        engine.encode([RED, BLUE])
        assert time.monotonic() - started_at >= 0.04


def test_a_slow_encode_ends_with_the_engine_and_not_with_an_abort() -> None:
    with reference(ReferenceOptions(encode_ms=60_000)) as engine:
        started = threading.Event()

        def encode() -> None:
            started.set()
            engine.encode([RED])

        thread = threading.Thread(target=encode)
        thread.start()
        assert started.wait(5)
        engine.set_abort(True)
        thread.join(0.1)
        assert thread.is_alive()
        engine.close()
        thread.join(5)
        assert not thread.is_alive()
