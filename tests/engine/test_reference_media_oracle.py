"""Images that come late, in a crowd: every request says what it says on an engine of its own.

The batcher over the reference engine, with models and caches of every kind. The images are
encoded when they are wanted, and offered some steps later or at once.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Literal

import pytest
from msgspec.structs import replace

from runnerd.core.batch import KVShift, Sampling
from runnerd.core.prompt import Part, TextPart
from runnerd.core.sequence import Options
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions
from runnerd.engine.reference.tokenizer import END_TOKENS
from tests.core.driven import Drive, Request, Said
from tests.engine.feeding import encoded, part_of, picture
from tests.engine.reference_builders import reference

KV = Literal["split", "unified"]
N_CTX = 112
ONE_LAYER = ReferenceOptions(layers=1, dim=8, heads=2, patch=8)
TWO_LAYERS = ReferenceOptions(layers=2, dim=8, heads=2, patch=8, shift=False)
KINDS = {
    # With one layer what was shifted is what is evaluated again, so a fork changes nothing.
    "shift": ONE_LAYER,
    "causal, shift": replace(ONE_LAYER, non_causal=False),
    "tiles, shift": replace(ONE_LAYER, tiles=3),
    "no shift": TWO_LAYERS,
    "m-rope": replace(TWO_LAYERS, mrope=True),
    "causal m-rope tiles": replace(TWO_LAYERS, mrope=True, non_causal=False, tiles=2),
    "window": replace(TWO_LAYERS, window=20),
    "causal in a window": replace(TWO_LAYERS, window=20, spare=30, non_causal=False),
    "recurrent": replace(ONE_LAYER, recurrent=True),
    "hybrid": replace(TWO_LAYERS, layers=3, recurrent=True, window=20, non_causal=False),
}
SHIFTING = [kind for kind in KINDS if KINDS[kind].shift and not KINDS[kind].recurrent]
WORDS = ("the cat ", "sat on a mat ", "and then ", "why? ")
IMAGES = {
    image.media_id: image
    for image in (
        picture(1, (255, 0, 0), width=24, height=16),
        picture(2, (0, 0, 255), width=24, height=16),
        picture(3, (0, 255, 0), (0, 0, 0), width=16, height=32),
        picture(4, (255, 255, 255), width=30, height=30),
    )
}


@contextmanager
def machine(
    options: ReferenceOptions, *, n_slots: int = 1, n_cells: int = 0, kv: KV = "split"
) -> Iterator[ReferenceEngine]:
    """Make an engine for a `with` block."""
    with reference(
        options,
        n_slots=n_slots,
        n_ctx=N_CTX,
        n_batch=48,
        n_ubatch=16,
        n_cells=n_cells,
        kv="auto" if n_cells else kv,
    ) as engine:
        yield engine


class MediaDrive(Drive):
    """Encodes what is wanted and offers it: at once, or with `rng` when it likes to."""

    def __init__(self, engine: ReferenceEngine, rng: Random | None = None) -> None:
        super().__init__(engine)
        self.n_encoded: Counter[int] = Counter()
        self.n_waits = 0
        self._rng = rng

    def step(self, elapsed_s: float = 0.01) -> bool:
        """Run a step or offer an image; return whether there was anything to do."""
        wanted = self.batcher.wanted_media()
        for media_id in wanted:
            if self._rng is None or self._rng.random() < 0.2:
                self._offer(media_id)
        if super().step(elapsed_s):
            self.n_waits += bool(self.batcher.wanted_media())
            return True
        wanted = self.batcher.wanted_media()
        for media_id in wanted[:1]:
            self._offer(media_id)
        return bool(wanted)

    def _offer(self, media_id: int) -> None:
        self.n_encoded[media_id] += 1
        self.batcher.offer_media(media_id, encoded(self.engine, [IMAGES[media_id]])[media_id])


def chat(rng: Random) -> list[Part]:
    """Return the parts of a chat with pictures, turn by turn, each of four parts."""
    parts: list[Part] = []
    for _ in range(3):
        said = "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 2)))
        parts += [
            TextPart("<|im_start|>", special=True),
            part_of(rng.choice(list(IMAGES.values()))),
            TextPart(said),
            TextPart("<|im_end|>", special=True),
        ]
    return parts


def requests_of(rng: Random, engine: ReferenceEngine, n_requests: int) -> list[Request]:
    """Return requests that are the beginnings of a few chats; some fill the context."""
    chats = [chat(rng) for _ in range(2)]
    requests = []
    for _ in range(n_requests):
        prompt = engine.expand(rng.choice(chats)[: rng.randint(2, 12)])
        sampling = Sampling(
            temperature=rng.choice((0.0, 1.0)),
            logit_bias=tuple((token, -3.0) for token in END_TOKENS),
            seed=rng.randrange(1000),
        )
        options = Options(
            sampling=sampling,
            max_tokens=rng.choice((1, 8, 90)),
            n_keep=rng.choice((0, 25)),
            truncate=True,
            shift=rng.random() < 0.6,
        )
        requests.append((prompt, options))
    return requests


def said_alone(requests: list[Request], kind: str) -> tuple[Said, dict[int, str]]:
    """Run each request on an engine of its own, with its images at once."""
    tokens: Said = {}
    endings: dict[int, str] = {}
    for seq_id, request in enumerate(requests):
        with machine(KINDS[kind]) as engine:
            drive = MediaDrive(engine)
            drive.submit(seq_id, request)
            drive.run()
        tokens |= drive.tokens
        endings |= drive.endings
    return tokens, endings


def assert_as_alone(drive: Drive, requests: list[Request], kind: str) -> None:
    """Fail where a request said or ended otherwise than alone."""
    assert (drive.tokens, drive.endings) == said_alone(requests, kind)


@pytest.mark.parametrize("kv", ["split", "unified"])
@pytest.mark.parametrize("kind", KINDS)
def test_images_in_a_crowd_say_what_they_say_alone(kind: str, kv: KV) -> None:
    rng = Random(kind + kv)
    with machine(KINDS[kind], n_slots=4, kv=kv) as engine:
        requests = requests_of(rng, engine, 9)
        drive = MediaDrive(engine, rng)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            for _ in range(rng.randrange(6)):
                drive.step(elapsed_s=rng.random() * 0.1)
        drive.run()
    assert_as_alone(drive, requests, kind)
    assert drive.n_waits > 0
    assert sum(drive.n_cached.values()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_images_where_cells_are_short_and_decodes_fail_say_what_they_say_alone(kind: str) -> None:
    rng = Random(kind)
    # A shift of cells that are shared evaluates them again instead, so none is shared for long.
    with machine(KINDS[kind], n_slots=4, n_cells=N_CTX + 60) as engine:
        requests = requests_of(rng, engine, 12)
        drive = MediaDrive(engine, rng)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            for _ in range(rng.randrange(6)):
                if rng.random() < 0.2:
                    engine.faults.no_kv_slot(1)
                if rng.random() < 0.4:
                    engine.faults.abort_after(rng.randrange(4))
                drive.step(elapsed_s=rng.random() * 0.1)
        drive.run()
    assert_as_alone(drive, requests, kind)
    assert drive.n_suspended + drive.n_backed_off + drive.n_aborted > 0


@pytest.mark.parametrize("kind", SHIFTING)
def test_a_context_full_of_images_shifts_at_their_borders(kind: str) -> None:
    with machine(KINDS[kind]) as engine:
        prompt = engine.expand([*chat(Random(1)), TextPart("go on")])
        sampling = Sampling(temperature=1.0, ignore_end=True, seed=1)
        drive = MediaDrive(engine)
        drive.submit(0, (prompt, Options(sampling, 200, truncate=True, shift=True)))
        drive.run()
    # The one layer shows it: what is shifted equals what is evaluated again where none can.
    with machine(replace(KINDS[kind], shift=False)) as engine:
        again = MediaDrive(engine)
        again.submit(0, (prompt, Options(sampling, 200, truncate=True, shift=True)))
        again.run()
    assert drive.tokens == again.tokens
    assert len(drive.tokens[0]) == 200
    assert drive.edits[KVShift] > 0
    assert not again.edits[KVShift]


@pytest.mark.parametrize("kv", ["split", "unified"])
@pytest.mark.parametrize("kind", ["shift", "no shift", "causal m-rope tiles"])
def test_an_image_is_encoded_once_for_all_that_ask_and_not_where_it_is_cached(
    kind: str, kv: KV
) -> None:
    with machine(KINDS[kind], n_slots=4, kv=kv) as engine:
        parts: list[Part] = [TextPart("see "), part_of(IMAGES[4]), TextPart(" and say")]
        requests = [(engine.expand(parts), Options(Sampling(seed=n), 8)) for n in range(6)]
        drive = MediaDrive(engine, Random(0))
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
        drive.run()
    assert drive.n_encoded == {4: 1}
    assert sum(drive.n_cached.values()) > 0
    assert_as_alone(drive, requests, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_other_pixels_of_the_same_size_are_never_taken_for_those_in_the_cache(kind: str) -> None:
    with machine(KINDS[kind], n_slots=2) as engine:
        prompts = [
            engine.expand([TextPart("see "), part_of(IMAGES[media_id]), TextPart(" and say")])
            for media_id in (1, 2, 1)
        ]
        requests = [(prompt, Options(max_tokens=8)) for prompt in prompts]
        drive = MediaDrive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            drive.run()
    assert_as_alone(drive, requests, kind)
    assert drive.tokens[0] == drive.tokens[2]
    assert drive.tokens[0] != drive.tokens[1]
