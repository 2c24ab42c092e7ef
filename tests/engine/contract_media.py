"""Contract: images in the KV cache, and in batches with others, are as they are alone."""

import pytest

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    KVCopy,
    KVRemove,
    KVShift,
)
from runnerd.core.prompt import Prompt
from runnerd.engine.base import Engine
from tests.engine.contract_images import EncodeContract, ImageLayoutContract, VisionSetup
from tests.engine.contract_media_faults import TEXT, MediaFaultContract
from tests.engine.driving import apply, skip_unless_rewinding
from tests.engine.feeding import (
    LOOKING,
    Feed,
    Media,
    feed_to,
    filled_with,
    gone_on,
    looked,
    prompt_of,
    together,
)

KEPT = 7  # the checkpoint that these tests save


def start_of(prompt: Prompt, index: int) -> Prompt:
    """Return the first inputs of a prompt, up to a border of a group."""
    return Prompt(prompt.inputs[:index], tuple(g for g in prompt.groups if g.stop <= index))


class MediaBatchContract(VisionSetup):
    """How the rows of images are batched never changes what comes out."""

    def prompts(self, engine: Engine) -> list[Prompt]:
        """Return prompts with images in any place."""
        red, blue, green = self.pictures()
        return [
            prompt_of(engine, "see ", red, " and say"),
            prompt_of(engine, blue, "is it"),
            prompt_of(engine, "one", green, "two", red, "three"),
            prompt_of(engine, "and last", green),
        ]

    def test_any_slot_gives_the_same(self, vision: Engine, media: Media) -> None:
        for prompt in self.prompts(vision):
            first = looked(vision, prompt, media)
            self.assert_alike(looked(vision, prompt, media, slot_id=3), first)

    @pytest.mark.parametrize("n_rows", [1, 2, 3, 7])
    def test_in_pieces_of_any_size_equals_at_once(
        self, vision: Engine, media: Media, n_rows: int
    ) -> None:
        for prompt in self.prompts(vision):
            pieces = looked(vision, prompt, media, n_rows=n_rows)
            self.assert_alike(pieces, looked(vision, prompt, media))

    def test_wherever_a_step_ends_the_rest_goes_on_as_if_it_had_not(
        self, vision: Engine, media: Media
    ) -> None:
        prompt = self.prompts(vision)[2]
        expected = looked(vision, prompt, media)
        for n_first in range(1, len(prompt.inputs)):
            group = prompt.layout.group_at(n_first)
            if group is not None and group.one_pass and n_first > group.start:
                continue
            feed = Feed(0, prompt, media)
            apply(vision, KVRemove(0, 0))
            feed_to(vision, feed, n_first)
            (outlook,) = gone_on(vision, [feed])
            self.assert_alike(outlook, expected)

    @pytest.mark.parametrize(
        ("n_rows", "order"), [(2, (3, 1, 0, 2)), (5, (0, 1, 2, 3)), (32, (3, 1, 0, 2))]
    )
    def test_images_of_several_sequences_together_are_as_each_alone(
        self, vision: Engine, media: Media, n_rows: int, order: tuple[int, ...]
    ) -> None:
        prompts = self.prompts(vision)
        feeds = [Feed(slot_id, prompts[slot_id], media) for slot_id in order]
        outlooks = together(vision, feeds, n_rows)
        for slot_id, outlook in zip(order, outlooks, strict=True):
            self.assert_alike(outlook, looked(vision, prompts[slot_id], media))

    def test_text_beside_images_is_as_alone(self, vision: Engine, media: Media) -> None:
        text = prompt_of(vision, TEXT * 3)
        expected = looked(vision, text, media)
        feeds = [Feed(n, prompt, media) for n, prompt in enumerate(self.prompts(vision)[:3])]
        *_, beside = together(vision, [*feeds, Feed(3, text, media)], 4)
        self.assert_alike(beside, expected)

    def test_two_images_are_told_apart_and_their_order_counts(
        self, vision: Engine, media: Media
    ) -> None:
        red, blue, _ = self.pictures()
        pairs = [(red, blue), (blue, red), (red, red), (blue, blue)]
        prompts = [prompt_of(vision, "see ", a, b, " and say") for a, b in pairs]
        outlooks = [looked(vision, prompt, media) for prompt in prompts]
        assert len(set(outlooks)) == len(pairs)
        feeds = [Feed(slot_id, prompt, media) for slot_id, prompt in enumerate(prompts)]
        for beside, alone in zip(together(vision, feeds, 6), outlooks, strict=True):
            self.assert_alike(beside, alone)

    def test_the_last_row_of_an_image_can_be_sampled(self, vision: Engine, media: Media) -> None:
        whole = prompt_of(vision, "see ", self.pictures()[0])
        prompt = start_of(whole, whole.groups[-1].stop)
        outlook = looked(vision, prompt, media)
        assert len(outlook) == LOOKING.n_logprobs
        self.assert_alike(looked(vision, prompt, media, slot_id=2, n_rows=2), outlook)


class MediaCacheContract(VisionSetup):
    """An image in the KV cache is as good as one that is evaluated again."""

    def test_what_follows_an_image_can_be_replaced(self, vision: Engine, media: Media) -> None:
        skip_unless_rewinding(vision)
        image = self.pictures()[2]
        old, new = (prompt_of(vision, "see ", image, text) for text in (" and say", "? No."))
        n_cached = old.groups[-1].stop + old.groups[-1].trail
        expected = looked(vision, new, media, slot_id=1)
        filled_with(vision, 0, old, media)
        self.assert_alike(looked(vision, new, media, n_cached=n_cached), expected)

    def test_an_image_can_be_replaced_by_another(self, vision: Engine, media: Media) -> None:
        skip_unless_rewinding(vision)
        red, blue, _ = self.pictures()
        old, new = (prompt_of(vision, "see ", image, " and say") for image in (red, blue))
        expected = looked(vision, new, media, slot_id=1)
        filled_with(vision, 0, old, media)
        n_cached = new.groups[0].start - new.groups[0].lead
        self.assert_alike(looked(vision, new, media, n_cached=n_cached), expected)

    def test_a_copy_of_a_slot_with_an_image_goes_on_as_the_slot_would(
        self, vision: Engine, media: Media
    ) -> None:
        prompts = [prompt_of(vision, "see ", self.pictures()[2], text) for text in ("?", "! No")]
        start = start_of(prompts[0], prompts[0].groups[-1].stop + prompts[0].groups[-1].trail)
        expected = [looked(vision, prompt, media, slot_id=1) for prompt in prompts]
        n_cached = filled_with(vision, 0, start, media)
        copy = KVCopy(0, 2, start.layout.position(n_cached))
        apply(vision, KVRemove(2, 0), copy)
        feeds = [
            Feed(slot_id, prompt, media, n_cached)
            for slot_id, prompt in zip((0, 2), prompts, strict=True)
        ]
        for outlook, alone in zip(together(vision, feeds), expected, strict=True):
            self.assert_alike(outlook, alone)

    def test_a_copy_up_to_the_end_of_an_image_leaves_the_rest_behind(
        self, vision: Engine, media: Media
    ) -> None:
        skip_unless_rewinding(vision)
        red, blue, green = self.pictures()
        source = prompt_of(vision, "see ", red, " and ", blue, " and say")
        other = prompt_of(vision, "see ", red, " and ", green, "? No.")
        expected = [looked(vision, prompt, media) for prompt in (source, other)]
        n_cached = filled_with(vision, 0, start_of(source, len(source.inputs) - 1), media)
        n_copied = source.groups[-1].start - source.groups[-1].lead
        copy = KVCopy(0, 2, source.layout.position(n_copied))
        apply(vision, KVRemove(2, 0), copy)
        feeds = [Feed(0, source, media, n_cached), Feed(2, other, media, n_copied)]
        for outlook, alone in zip(together(vision, feeds), expected, strict=True):
            self.assert_alike(outlook, alone)

    def test_a_copy_outlives_the_slot_whose_image_it_shares(
        self, vision: Engine, media: Media
    ) -> None:
        red, blue, _ = self.pictures()
        prompt = prompt_of(vision, "see ", red, " and say")
        expected = looked(vision, prompt, media, slot_id=1)
        start = start_of(prompt, len(prompt.inputs) - 1)
        n_cached = filled_with(vision, 0, start, media)
        n_pos = start.layout.position(n_cached)
        apply(vision, KVRemove(1, 0), KVCopy(0, 1, n_pos), KVRemove(0, 0))
        filled_with(vision, 0, prompt_of(vision, blue, "is it"), media)
        self.assert_alike(looked(vision, prompt, media, slot_id=1, n_cached=n_cached), expected)

    def test_a_checkpoint_behind_an_image_can_be_restored(
        self, vision: Engine, media: Media
    ) -> None:
        if not vision.limits.needs_checkpoints:
            pytest.skip("the engine goes back in a slot by forgetting its end")
        red, blue, _ = self.pictures()
        old, new = (prompt_of(vision, "see ", red, text) for text in (" and say", "? No."))
        n_cached = old.groups[-1].stop + old.groups[-1].trail
        expected = looked(vision, new, media, slot_id=1)
        start = start_of(old, n_cached)
        filled_with(vision, 0, start, media)
        apply(vision, CheckpointSave(KEPT, 0))
        longer = prompt_of(vision, "see ", red, " and say", blue, TEXT * 2)
        looked(vision, longer, media, n_cached=n_cached)
        restore = CheckpointRestore(KEPT, 0, start.layout.position(n_cached))
        apply(vision, restore, CheckpointDrop(KEPT))
        self.assert_alike(looked(vision, new, media, n_cached=n_cached), expected)

    def test_an_image_can_be_dropped_by_a_shift(self, vision: Engine, media: Media) -> None:
        if not vision.limits.can_shift:
            pytest.skip("the engine cannot shift")
        red, _, green = self.pictures()
        prompt = prompt_of(vision, "see ", red, " and ", green, TEXT)
        first = prompt.groups[0]
        unit = (first.start - first.lead, first.stop + first.trail)
        start, stop = map(prompt.layout.position, unit)
        left = Prompt(
            prompt.inputs[: unit[0]] + prompt.inputs[unit[1] :],
            prompt.layout.without(*unit).groups,
        )
        outlooks = []
        for slot_id in (0, 1):
            filled_with(vision, slot_id, start_of(prompt, len(prompt.inputs) - 1), media)
            apply(
                vision, KVRemove(slot_id, start, stop), KVShift(slot_id, stop, None, start - stop)
            )
            n_cached = len(left.inputs) - 1
            outlooks.append(looked(vision, left, media, slot_id=slot_id, n_cached=n_cached))
        self.assert_alike(*outlooks)


class MediaContract(
    ImageLayoutContract, EncodeContract, MediaBatchContract, MediaCacheContract, MediaFaultContract
):
    """All that an engine must do with images: subclass this, with the builders of `VisionSetup`."""
