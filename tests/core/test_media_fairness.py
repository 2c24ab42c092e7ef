"""Under a steady load of text, an image gets its turn soon after its rows are there."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.core.batch import Limits, Step
from runnerd.core.batcher import Batcher
from runnerd.core.sequence import Sequence
from tests.core.some_images import make_image
from tests.helpers import (
    ByteVocabulary,
    Image,
    make_limits,
    make_prompt,
    make_sequence,
    result_of,
    rows_named,
    rows_of,
)

N_STEPS = 60


@st.composite
def loads(draw: st.DrawFn) -> tuple[Limits, list[Image | None]]:
    """Return limits, and what each slot is busy with: images of a shape, or text alone."""
    n_slots = draw(st.integers(1, 8))
    n_batch = draw(st.integers(n_slots, 64))
    n_ubatch = draw(st.integers(1, n_batch))
    shape = st.builds(
        make_image,
        st.integers(1, 3),
        st.integers(1, n_ubatch),
        st.just(1),
        st.integers(1, 2),
        st.sampled_from((2, 3, 6, 7)),
    )
    images = draw(st.lists(st.none() | shape, min_size=n_slots, max_size=n_slots))
    limits = make_limits(n_slots=n_slots, n_ctx=1024, n_batch=n_batch, n_ubatch=n_ubatch)
    return limits, images


class Load:
    """Keeps every slot busy: one generates for ever, the others get prompt after prompt."""

    def __init__(self, limits: Limits, images: list[Image | None], rng: Random) -> None:
        self.batcher = Batcher(limits, ByteVocabulary(), target_itl_s=0.05)
        self.sequences: dict[int, Sequence] = {}
        self._images = images
        self._rng = rng
        self._limits = limits

    def refill(self) -> None:
        """Put a sequence into each place that is empty."""
        live = {seq_id % len(self._images) for seq_id in self.batcher.seq_ids}
        for place in sorted({*range(len(self._images))} - live):
            self._submit(place)

    def _submit(self, place: int) -> None:
        image, rng = self._images[place], self._rng
        seq_id = place + len(self._images) * len(self.sequences)
        text = [rng.randrange(97, 120) for _ in range(rng.randint(1, 40))]
        parts = [text] if image is None else [text[:20], image, text[20:], image, [1]]
        n_tokens = rng.choice((1, 4, 200))
        prompt = make_prompt(*parts)
        sequence = make_sequence(seq_id, prompt, limits=self._limits, max_tokens=n_tokens)
        self.sequences[seq_id] = sequence
        self.batcher.submit(sequence)

    def step(self) -> Step | None:
        """Run a step; some of the media that are wanted come before it."""
        step = self.batcher.plan(0.0)
        if step is not None:
            result = result_of(step, lambda _: self._rng.randrange(97, 120))
            self.batcher.commit(step, result, 0.0, self._rng.choice((0.001, 0.2)))
            self.batcher.check()
        self.refill()
        for media_id in self.batcher.wanted_media():
            if step is None or self._rng.random() < 0.5:
                self.batcher.offer_media(media_id, rows_named(media_id))
        return step

    def ready(self) -> dict[int, int]:
        """Return who is at an image whose rows are there, and how many inputs they take."""
        wanted, ready = self.batcher.wanted_media(), dict[int, int]()
        for sequence in self.batcher.residency.active():
            group = sequence.layout.group_at(sequence.n_past)
            if group is not None and group.media_id not in wanted:
                ready[sequence.seq_id] = group.n_inputs if group.one_pass else 1
        return ready


@settings(deadline=None, max_examples=150)
@given(loads(), st.integers(0, 2**32))
def test_an_image_gets_rows_within_a_step_per_slot(
    load: tuple[Limits, list[Image | None]], seed: int
) -> None:
    """One more for each that is so large that others have to generate in between."""
    limits, images = load
    loaded = Load(limits, images, Random(seed))
    loaded.refill()
    n_large = sum(
        image is not None and image.one_pass and image.n_rows > limits.n_batch - limits.n_slots
        for image in images
    )
    n_waited: dict[int, int] = {}
    for _ in range(N_STEPS):
        ready = loaded.ready()
        step = loaded.step()
        if step is None:
            continue
        assert step.n_rows <= limits.n_batch
        served = rows_of(step)
        n_waited = {key: n_waited.get(key, 0) + 1 for key in ready if key not in served}
        assert all(n < limits.n_slots + n_large for n in n_waited.values()), "waits too long"


def test_a_large_image_under_full_load_waits_for_one_step_of_the_others() -> None:
    limits = make_limits(n_slots=4, n_ctx=256, n_batch=16)
    batcher = Batcher(limits, ByteVocabulary(), target_itl_s=0.05)
    for seq_id in range(3):
        batcher.submit(make_sequence(seq_id, [seq_id], limits=limits))
    image = Image(7, 16, encoded=True)
    batcher.submit(make_sequence(3, make_prompt([1], image, image, [1]), limits=limits))
    steps: list[set[int]] = []
    for _ in range(5):
        step = batcher.plan(0.0)
        assert step is not None
        steps.append(set(rows_of(step)))
        batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.01)
        for media_id in batcher.wanted_media():
            batcher.offer_media(media_id, rows_named(media_id))
    assert steps == [{0, 1, 2, 3}, {3}, {0, 1, 2}, {3}, {0, 1, 2, 3}]
