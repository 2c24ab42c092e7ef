"""Contract: what becomes of images in a prompt, and in the encoder."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from runnerd.core.prompt import Group, ImagePart, Prompt, TextPart
from runnerd.engine.base import EncodedImage, Engine, Pixels
from runnerd.errors import EngineFailed, InvalidMedia, Unsupported
from tests.engine.feeding import (
    Media,
    Outlook,
    are_alike,
    encoded,
    looked,
    part_of,
    picture,
    prompt_of,
)

EXTREME = [(1, 1), (2000, 1), (1, 2000), (2000, 3), (511, 513), (17, 16)]


class VisionSetup:
    """What a test class for an engine provides: engines, and pictures that it can tell apart.

    All of it may be replaced. With a `tolerance` of 0 log-probabilities are compared exactly.
    `mark_names` is what special text would call the tokens around an image.
    """

    tolerance: ClassVar[float] = 0.0
    mark_names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def make_vision_engine(
        cls,
        *,
        n_slots: int = 4,
        n_ctx: int = 256,
        n_batch: int = 128,
        n_cells: int = 0,
    ) -> AbstractContextManager[Engine]:
        """Make an engine that reads images, as exact as it can be; with cells one for all."""
        raise NotImplementedError

    @classmethod
    def make_blind_engine(cls) -> AbstractContextManager[Engine]:
        """Make an engine that reads no images."""
        raise NotImplementedError

    @classmethod
    def pictures(cls) -> tuple[Pixels, Pixels, Pixels]:
        """Return three pictures that look different, the first two of the same size."""
        return (
            picture(101, (255, 0, 0), width=48, height=32),
            picture(102, (0, 0, 255), width=48, height=32),
            picture(103, (0, 255, 0), (255, 255, 255), width=32, height=64),
        )

    @pytest.fixture(scope="class")
    @classmethod
    def vision(cls) -> Iterator[Engine]:
        """An engine that reads images, shared by the tests of the class."""
        with cls.make_vision_engine() as engine:
            yield engine

    @pytest.fixture(scope="class")
    @classmethod
    def media(cls, vision: Engine) -> Media:
        """The pictures as the engine's encoder makes them."""
        return encoded(vision, cls.pictures())

    def assert_alike(self, a: Outlook, b: Outlook) -> None:
        """Fail where two outlooks differ by more than the tolerance."""
        assert are_alike(a, b, self.tolerance), f"{a[:3]} is not {b[:3]}"


def units(prompt: Prompt) -> list[tuple[range, list[Group]]]:
    """Return the units, as ranges of inputs, each with its groups."""
    found: dict[range, list[Group]] = {}
    for group in prompt.groups:
        unit = range(group.start - group.lead, group.stop + group.trail)
        found.setdefault(unit, []).append(group)
    return list(found.items())


def marks(prompt: Prompt) -> list[int]:
    """Return the tokens of the units."""
    return [prompt.inputs[i] for unit, _ in units(prompt) for i in unit if prompt.inputs[i] >= 0]


class ImageLayoutContract(VisionSetup):
    """An image in a prompt becomes groups and marks, by its size alone."""

    def test_the_size_alone_says_where_everything_lies(self, vision: Engine) -> None:
        first, second, _ = (prompt_of(vision, "a", image, "b") for image in self.pictures())
        assert [(g.start, g.stop, g.n_pos, g.lead, g.trail, g.row0) for g in first.groups] == [
            (g.start, g.stop, g.n_pos, g.lead, g.trail, g.row0) for g in second.groups
        ]
        assert marks(first) == marks(second)

    def test_the_same_parts_give_the_same_prompt(self, vision: Engine) -> None:
        parts = ("a", *self.pictures(), "b")
        assert prompt_of(vision, *parts) == prompt_of(vision, *parts)

    def test_other_pixels_are_other_inputs(self, vision: Engine) -> None:
        prompts = [prompt_of(vision, image) for image in self.pictures()]
        rows = [key for prompt in prompts for key in prompt.inputs if key < 0]
        assert len(set(rows)) == len(rows) > 0

    def test_a_unit_holds_all_groups_of_its_image_and_no_text(self, vision: Engine) -> None:
        images = self.pictures()
        prompt = prompt_of(vision, "one", images[0], images[2], "two", images[0])
        found = units(prompt)
        ids = [images[number].media_id for number in (0, 2, 0)]
        assert [groups[0].media_id for _, groups in found] == ids
        for (unit, _), (following, _) in pairwise(found):
            assert unit.stop <= following.start
        outside = [i for i in range(len(prompt.inputs)) if not any(i in u for u, _ in found)]
        assert tuple(prompt.inputs[i] for i in outside) == (
            *prompt_of(vision, "one").inputs,
            *vision.expand([TextPart("two")], add_bos=False).inputs,
        )

    def test_the_groups_of_a_unit_hold_the_rows_of_its_image_in_order(
        self, vision: Engine, media: Media
    ) -> None:
        prompt = prompt_of(vision, "a", *self.pictures(), "b")
        for unit, groups in units(prompt):
            assert len({group.media_id for group in groups}) == 1
            row = 0
            for group in groups:
                assert group.encoded
                assert group.row0 == row
                assert 1 <= group.n_pos <= group.n_inputs
                row += group.n_inputs
            assert row == len(media[groups[0].media_id].rows)
            assert sum(prompt.inputs[i] < 0 for i in unit) == row

    def test_the_same_image_is_the_same_inputs_wherever_it_stands(self, vision: Engine) -> None:
        image = self.pictures()[2]
        prompt = prompt_of(vision, image, "some text", image, image)
        one, *others = (prompt.inputs[unit.start : unit.stop] for unit, _ in units(prompt))
        assert others == [one, one]

    def test_an_image_takes_no_more_inputs_than_the_model_says(self, vision: Engine) -> None:
        for width, height in EXTREME:
            try:
                prompt = vision.expand([ImagePart(7, width, height)], add_bos=False)
            except InvalidMedia:
                continue
            assert 0 < len(prompt.inputs) <= vision.model.n_image_rows, (width, height)

    def test_no_text_is_an_image_or_a_mark_of_one(self, vision: Engine) -> None:
        # A mark may begin or end in plain text, such as line breaks: those are for everyone.
        tokens = set(marks(prompt_of(vision, *self.pictures())))
        control = {token for token in tokens if not _is_text(vision.token_bytes(token))}
        names = (*self.mark_names, "<image>", "<__media__>", "<image:3>", "[IMG]", "\ufffd")
        for name in names:
            prompt = vision.expand([TextPart(name)], add_bos=False)
            assert prompt.groups == ()
            assert b"".join(map(vision.token_bytes, prompt.inputs)) == name.encode()
            assert not control.intersection(prompt.inputs), name

    def test_a_model_without_a_projector_reads_no_images(self) -> None:
        image = self.pictures()[0]
        with self.make_blind_engine() as engine:
            assert engine.model.n_image_rows == 0
            with pytest.raises(Unsupported):
                engine.expand([TextPart("see "), part_of(image)])
            (failed,) = engine.encode([image])
            assert isinstance(failed, EngineFailed)
            assert engine.expand([TextPart("no picture")]).groups == ()


def _is_text(written: bytes) -> bool:
    return bool(written) and written.decode(errors="ignore") != ""


class EncodeContract(VisionSetup):
    """The encoder turns pixels into rows."""

    def test_rows_and_offsets_have_a_line_for_each_input(
        self, vision: Engine, media: Media
    ) -> None:
        for image in self.pictures():
            rows, offsets = media[image.media_id].rows, media[image.media_id].offsets
            groups = prompt_of(vision, image).groups
            n_rows = sum(group.n_inputs for group in groups)
            assert rows.dtype == np.float32
            assert offsets.dtype == np.int32
            assert rows.shape == (n_rows, vision.model.n_embd)
            assert offsets.shape in ((1, n_rows), (4, n_rows))
            assert np.isfinite(rows).all()

    def test_offsets_begin_anew_in_each_group_and_take_its_positions(
        self, vision: Engine, media: Media
    ) -> None:
        for image in self.pictures():
            for group in prompt_of(vision, image).groups:
                rows = slice(group.row0, group.row0 + group.n_inputs)
                offsets = media[image.media_id].offsets[:, rows]
                assert not offsets[:, 0].any()
                assert offsets.min() == 0
                assert offsets.max() + 1 == group.n_pos

    def test_the_memory_of_an_image_is_that_of_its_numbers(
        self, vision: Engine, media: Media
    ) -> None:
        for one in media.values():
            n_axes, n_rows = one.offsets.shape
            assert one.n_bytes == 4 * n_rows * (vision.model.n_embd + n_axes)

    def test_several_images_at_once_are_as_one_by_one(self, vision: Engine, media: Media) -> None:
        images = self.pictures()
        for image in (*images, images[0]):
            assert _same(encoded(vision, [image])[image.media_id], media[image.media_id])
        again = vision.encode([images[2], images[0], images[2]])
        for one, number in zip(again, (2, 0, 2), strict=True):
            assert isinstance(one, EncodedImage)
            assert _same(one, media[images[number].media_id])

    def test_no_images_are_nothing(self, vision: Engine) -> None:
        assert vision.encode([]) == ()

    def test_encoded_images_do_not_change_when_others_are_encoded(self, vision: Engine) -> None:
        first, second, _ = self.pictures()
        (one,) = vision.encode([first])
        assert isinstance(one, EncodedImage)
        before = one.rows.copy()
        vision.encode([second])
        assert np.array_equal(one.rows, before)

    def test_images_of_any_shape_have_the_rows_that_their_prompts_have(
        self, vision: Engine
    ) -> None:
        for number, (width, height) in enumerate(EXTREME):
            image = picture(1000 + number, (255, 0, 0), width=width, height=height)
            try:
                prompt = prompt_of(vision, image)
            except InvalidMedia:
                continue
            n_rows = sum(group.n_inputs for group in prompt.groups)
            assert len(encoded(vision, [image])[image.media_id].rows) == n_rows, (width, height)

    def test_encoding_beside_decodes_changes_neither(self, vision: Engine, media: Media) -> None:
        images = self.pictures()
        prompt = prompt_of(vision, "see ", images[2], " and say")
        expected = looked(vision, prompt, media)
        results: list[EncodedImage | EngineFailed] = []
        started, stop = threading.Event(), threading.Event()

        def encode() -> None:
            while not stop.is_set() or not results:
                started.set()
                results.extend(vision.encode(images[:1]))

        thread = threading.Thread(target=encode)
        thread.start()
        try:
            assert started.wait(10)
            beside = [looked(vision, prompt, media) for _ in range(5)]
        finally:
            stop.set()
            thread.join(60)
        for outlook in beside:
            self.assert_alike(outlook, expected)
        for one in results:
            assert isinstance(one, EncodedImage)
            assert _same(one, media[images[0].media_id])


def _same(a: EncodedImage, b: EncodedImage) -> bool:
    """Whether two encoded images are the same, but for the last bits of floats."""
    same_offsets = np.array_equal(a.offsets, b.offsets)
    return same_offsets and np.allclose(a.rows, b.rows, rtol=1e-5, atol=1e-6)
