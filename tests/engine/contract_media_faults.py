"""Contract: after a decode with images that did not run, nothing is different."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from runnerd.core.batch import Batch, BatchKind, KVRemove, Span
from runnerd.core.prompt import Prompt
from runnerd.engine.base import EncodedImage, Engine
from runnerd.errors import DecodeAborted, NoKVSlot
from tests.engine.contract_images import VisionSetup
from tests.engine.driving import N_ROWS, apply, filled, tokens
from tests.engine.feeding import Feed, Media, Outlook, feed_to, filled_with, looked, prompt_of

TEXT = "10, 9, 8, 7, 6,"


def before_image(engine: Engine, prompt: Prompt, media: Media) -> Batch:
    """Feed slot 0 what is before the first group, and return the batch that comes next."""
    feed = Feed(0, prompt, media)
    apply(engine, KVRemove(0, 0))
    feed_to(engine, feed, prompt.groups[0].start)
    kind, span = feed.advance(N_ROWS)
    return Batch(kind, (span,))


def with_media(change: Callable[[EncodedImage], object]) -> Callable[[Batch], Batch]:
    """Return how to change the rows that ride in a batch's span."""

    def changed(batch: Batch) -> Batch:
        (span,) = batch.spans
        assert isinstance(span.media, EncodedImage)
        return Batch(batch.kind, (replace(span, media=change(span.media)),))

    return changed


def with_span(change: Callable[[Span], Span]) -> Callable[[Batch], Batch]:
    """Return how to change a batch's span."""
    return lambda batch: Batch(batch.kind, (change(batch.spans[0]),))


def with_other_mask(batch: Batch) -> Batch:
    """Let a causal group be run as a non-causal one, or the other way round."""
    is_causal = batch.kind is BatchKind.MEDIA
    return Batch(BatchKind.MEDIA_NON_CAUSAL if is_causal else BatchKind.MEDIA, batch.spans)


FAULTS: dict[str, Callable[[Batch], Batch]] = {
    "rows beyond the medium": with_media(
        lambda media: EncodedImage(media.rows[:1], media.offsets[:, :1])
    ),
    "rows of another width": with_media(
        lambda media: EncodedImage(media.rows[:, :-1], media.offsets)
    ),
    "offsets of other rows": with_media(
        lambda media: EncodedImage(media.rows, media.offsets[:, :-1])
    ),
    "no rows": with_media(lambda media: None),
    "what no encoder gave": with_media(lambda media: media.rows),
    "a row before the first": with_span(lambda span: replace(span, row0=-1)),
    "a slot too many": with_span(lambda span: replace(span, slot_id=4)),
    "a negative slot": with_span(lambda span: replace(span, slot_id=-1)),
    "a gap before the first position": with_span(lambda span: replace(span, pos=span.pos + 1)),
    "media as tokens": lambda batch: Batch(BatchKind.TOKENS, batch.spans),
    "the other mask": with_other_mask,
}


class MediaFaultContract(VisionSetup):
    """After a decode with images that did not run, text is what it was: the mask is causal."""

    def text(self, engine: Engine, slot_id: int = 1) -> Outlook:
        """Return what is expected after a text."""
        return looked(engine, prompt_of(engine, TEXT), {}, slot_id=slot_id)

    def test_text_is_the_same_before_and_after_an_image(self, vision: Engine, media: Media) -> None:
        before = self.text(vision)
        filled_with(vision, 0, prompt_of(vision, "see ", *self.pictures()), media)
        self.assert_alike(self.text(vision), before)

    def test_text_is_the_same_after_an_image_that_was_stopped(
        self, vision: Engine, media: Media
    ) -> None:
        before = self.text(vision)
        image = self.pictures()[0]
        prompt = prompt_of(vision, "see ", image, " and say")
        expected = looked(vision, prompt, media)
        batch = before_image(vision, prompt, media)
        vision.set_abort(True)
        try:
            vision.decode(batch)
        except DecodeAborted:
            pass  # an engine may also run it to its end
        finally:
            vision.set_abort(False)
        self.assert_alike(self.text(vision), before)
        self.assert_alike(looked(vision, prompt, media), expected)

    def test_text_is_the_same_after_an_image_that_found_no_room(self, media: Media) -> None:
        image = self.pictures()[0]
        with self.make_vision_engine(n_cells=256) as engine:
            before = self.text(engine, slot_id=0)
            apply(engine, KVRemove(0, 0))
            token = tokens(engine, TEXT)[-1]
            for slot_id, n_rows in ((1, 96), (2, 96), (3, 62)):
                filled(engine, slot_id, [token] * n_rows)
            batch = before_image(engine, only_rows(prompt_of(engine, image, "?")), media)
            with pytest.raises(NoKVSlot):
                engine.decode(batch)
            apply(engine, KVRemove(1, 0))
            self.assert_alike(self.text(engine, slot_id=1), before)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_rows_that_make_no_sense_are_refused_before_they_are_run(
        self, vision: Engine, media: Media, fault: str
    ) -> None:
        before = self.text(vision)
        batch = before_image(vision, prompt_of(vision, "see ", self.pictures()[0], "?"), media)
        with pytest.raises(AssertionError):
            vision.decode(FAULTS[fault](batch))
        self.assert_alike(self.text(vision), before)
        vision.decode(batch)


def only_rows(prompt: Prompt) -> Prompt:
    """Return a prompt that begins with its first group."""
    start = prompt.groups[0].start
    return Prompt(prompt.inputs[start:], prompt.layout.without(0, start).groups)
