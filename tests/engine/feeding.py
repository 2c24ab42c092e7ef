"""Prompts with images, fed to an engine by hand; and what it expects after them, to compare."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runnerd.core.batch import (
    Batch,
    BatchKind,
    KVRemove,
    Logprobs,
    SamplerClose,
    SamplerOpen,
    Sampling,
    Span,
    Step,
)
from runnerd.core.prompt import Group, ImagePart, Part, Prompt, TextPart
from runnerd.engine.base import EncodedImage, Engine, Pixels, run_step
from tests.engine.driving import N_ROWS, apply

Media = Mapping[int, EncodedImage]
Outlook = tuple[tuple[int, float], ...]
"""The likeliest next tokens, with their log-probabilities, descending."""

LOOKING = Sampling(n_logprobs=20)


def picture(media_id: int, *areas: tuple[int, int, int], width: int, height: int) -> Pixels:
    """Return an image of areas of one colour each, from the top down."""
    lines = np.arange(height) * len(areas) // height
    rgb = np.array(areas, np.uint8)[lines][:, np.newaxis].repeat(width, axis=1)
    return Pixels(media_id, rgb)


def part_of(image: Pixels) -> ImagePart:
    """Return the part of a prompt that stands for an image."""
    height, width, _ = image.rgb.shape
    return ImagePart(image.media_id, width, height)


def prompt_of(engine: Engine, *parts: str | Pixels) -> Prompt:
    """Expand plain texts and images."""
    expanded: list[Part] = [
        TextPart(part) if isinstance(part, str) else part_of(part) for part in parts
    ]
    return engine.expand(expanded)


def encoded(engine: Engine, images: Sequence[Pixels]) -> dict[int, EncodedImage]:
    """Encode images, none of which fails."""
    media: dict[int, EncodedImage] = {}
    for image, rows in zip(images, engine.encode(images), strict=True):
        assert isinstance(rows, EncodedImage), rows
        media[image.media_id] = rows
    return media


@dataclass(slots=True)
class Feed:
    """A prompt on its way into a slot, of which the first `n_fed` inputs are there.

    `media` are its encoded images.
    """

    slot_id: int
    prompt: Prompt
    media: Media
    n_fed: int = 0

    @property
    def group(self) -> Group | None:
        """The group that comes next, if one does."""
        return self.prompt.layout.group_at(self.n_fed)

    def advance(self, n_rows: int) -> tuple[BatchKind, Span]:
        """Return the next rows, so many at most where that is allowed; they count as fed."""
        layout, start, group = self.prompt.layout, self.n_fed, self.group
        if group is None:
            following = layout.next_group(start)
            stop = following.start if following else len(self.prompt.inputs)
        else:
            stop = group.stop
        if group is None or not group.one_pass:
            stop = min(stop, start + n_rows)
        self.n_fed = stop
        return self._kind(group), Span(
            seq_id=self.slot_id,
            slot_id=self.slot_id,
            pos=layout.position(group.start if group else start),
            inputs=self.prompt.inputs[start:stop],
            wants_logits=stop == len(self.prompt.inputs),
            media_id=group.media_id if group else 0,
            row0=group.row0 + start - group.start if group else 0,
            media=self.media.get(group.media_id) if group else None,
        )

    def _kind(self, group: Group | None) -> BatchKind:
        if group is None:
            return BatchKind.TOKENS
        return BatchKind.MEDIA_NON_CAUSAL if group.one_pass else BatchKind.MEDIA


def looked(
    engine: Engine,
    prompt: Prompt,
    media: Media,
    *,
    slot_id: int = 0,
    n_cached: int = 0,
    n_rows: int = N_ROWS,
) -> Outlook:
    """Feed what a slot lacks of a prompt, nobody else around; return what is expected next."""
    (outlook,) = together(engine, [Feed(slot_id, prompt, media, n_cached)], n_rows)
    return outlook


def filled_with(engine: Engine, slot_id: int, prompt: Prompt, media: Media) -> int:
    """Feed a prompt to an empty slot; return how many inputs it holds."""
    looked(engine, prompt, media, slot_id=slot_id)
    return len(prompt.inputs)


def together(engine: Engine, feeds: Sequence[Feed], n_rows: int = N_ROWS) -> list[Outlook]:
    """Forget what prompts have not fed, which begins at no row of a group, and let them go on."""
    for feed in feeds:
        apply(engine, KVRemove(feed.slot_id, feed.prompt.layout.position(feed.n_fed)))
    return gone_on(engine, feeds, n_rows)


def feed_to(engine: Engine, feed: Feed, stop: int) -> None:
    """Feed a prompt up to an index, where that is allowed, which is not its end."""
    while feed.n_fed < stop:
        kind, span = feed.advance(min(N_ROWS, stop - feed.n_fed))
        result = run_step(engine, Step(1, (), (Batch(kind, (span,)),)))
        assert result.n_batches == 1, "the KV cache was full"


def gone_on(engine: Engine, feeds: Sequence[Feed], n_rows: int = N_ROWS) -> list[Outlook]:
    """Feed prompts in the same steps, `n_rows` of each, in this order; return what comes next."""
    apply(engine, *(SamplerOpen(feed.slot_id, LOOKING) for feed in feeds))
    outlooks: dict[int, Outlook] = {}
    try:
        while due := [feed for feed in feeds if feed.n_fed < len(feed.prompt.inputs)]:
            outlooks |= _step(engine, [feed.advance(n_rows) for feed in due])
    finally:  # a test that fails here must not fail the next one
        apply(engine, *(SamplerClose(feed.slot_id) for feed in feeds))
    return [outlooks[feed.slot_id] for feed in feeds]


def _step(engine: Engine, spans: list[tuple[BatchKind, Span]]) -> dict[int, Outlook]:
    batches = tuple(_batches(spans, engine.limits.n_ubatch))
    result = run_step(engine, Step(1, (), batches))
    assert result.n_batches == len(batches), "the KV cache was full"
    wanting = [span.seq_id for batch in batches for span in batch.spans if span.wants_logits]
    outlooks: dict[int, Outlook] = {}
    for seq_id, sampled in zip(wanting, result.sampled, strict=True):
        assert isinstance(sampled, Logprobs), sampled
        outlooks[seq_id] = sampled.top
    return outlooks


def _batches(spans: list[tuple[BatchKind, Span]], n_ubatch: int) -> Iterator[Batch]:
    for wanted in BatchKind:
        run: list[Span] = []
        for kind, span in spans:
            if kind is not wanted:
                continue
            n_run = sum(len(other.inputs) for other in run)
            if kind is BatchKind.MEDIA_NON_CAUSAL and n_run + len(span.inputs) > n_ubatch:
                yield Batch(wanted, tuple(run))
                run = []
            run.append(span)
        if run:
            yield Batch(wanted, tuple(run))


def are_alike(a: Outlook, b: Outlook, tolerance: float) -> bool:
    """Whether two outlooks are the same, as far as both tell; with tolerance 0: to the last bit."""
    if tolerance == 0.0:
        return a == b
    first, second = dict(a), dict(b)
    both = first.keys() & second.keys()
    # Near the end of the lists little decides which token is told.
    if len(both) < len(first) // 2:
        return False
    return all(abs(first[token] - second[token]) <= tolerance for token in both)
