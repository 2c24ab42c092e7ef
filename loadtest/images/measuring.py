"""Images: what text feels of them, what they leave behind, and what the same one costs again."""

from collections.abc import Iterator, Sequence
from statistics import median

import anyio
from msgspec import Struct

from loadtest.bars import Bar, at_least, at_most
from loadtest.console import Tell
from loadtest.growth import Growth, growth, holding
from loadtest.images.requests import (
    QUESTION,
    Answer,
    ask,
    ask_together,
    asking_on,
    measure_media_step,
    pictures,
)
from loadtest.images.setup import ImageSetup
from loadtest.streams.recording import Load
from loadtest.streams.run import run_clients
from runnerd.client import Client
from runnerd.launcher import launch

N_TEXT_STREAMS, N_TEXT_PROMPT = 3, 32
N_TOGETHER, N_ALONE = 16, 3
N_CTX = 512  # an image of 256 rows, what is asked about it, and the texts beside it

MOST_TIMES = 2.0  # the gap beside images to that without; the time of all to that of one

# Of the daemon that is asked a thousand times, once all that it keeps of images is full: encoded
# ones and files after a few hundred, a connection's hashes after 2048. What grows then is a leak.
GROWTH_SIDE = 512
GROWTH_OPTIONS = ("--image-cache-mib=4", "--image-store-mib=64")
N_AT_ONCE, N_BETWEEN_LOOKS, N_GROWTH_CTX = 4, 10, 2048


class ImageLoad(Struct, frozen=True, kw_only=True):
    """What is asked: pictures of `side` pixels, texts of `max_tokens` beside them.

    The growth is looked at over `n_requests`, after `n_warm_up`.
    """

    side: int = 256
    max_tokens: int = 128
    n_rounds: int = 3
    n_requests: int = 1000
    n_warm_up: int = 2048


class Beside(Struct, frozen=True):
    """Text streams without and with new images all the time, and the time of a media step."""

    itl_p50_ms: float
    itl_p95_ms: float
    itl_p95_beside_ms: float
    media_step_ms: float
    encode_ms: float
    n_encoded: int


class Again(Struct, frozen=True):
    """One image in one request, in many at once, and once more afterwards."""

    one_s: float
    all_s: float
    n_encoded: int
    again: Answer
    n_encoded_again: int
    n_question: int


class ImageOutcome(Struct, frozen=True):
    """Everything that was measured, and the bars."""

    beside: Beside
    again: Again
    growth: Growth
    bars: list[Bar]


async def measure_images(setup: ImageSetup, load: ImageLoad, tell: Tell) -> ImageOutcome:
    """Start daemons, one after the other, and measure them.

    Raises:
        ClientError: a daemon has ended early, or does not read images, and why.
    """
    new = pictures(load.side)
    async with launch(setup.model, slots=N_TOGETHER, ctx=N_CTX, options=setup.options) as child:
        await child.ready()
        beside = await _measure_beside(child.client, new, load)
        tell(f"ITL p95 {beside.itl_p95_ms:.1f} ms, beside images {beside.itl_p95_beside_ms:.1f}")
        again = await _measure_again(child.client, new)
        tell(f"first token after {again.one_s:.2f} s, of {N_TOGETHER} after {again.all_s:.2f} s")
    options = [*setup.few_rows, *GROWTH_OPTIONS]
    async with launch(setup.model, slots=N_AT_ONCE, ctx=N_GROWTH_CTX, options=options) as child:
        await child.ready()
        grown = await _measure_growth(child.client, child.pid, load, tell)
    return ImageOutcome(beside, again, grown, image_bars(beside, again, grown))


def image_bars(beside: Beside, again: Again, grown: Growth) -> list[Bar]:
    """Hold the figures against their limits."""
    most_itl_ms = MOST_TIMES * beside.itl_p95_ms + beside.media_step_ms
    most_all_s = MOST_TIMES * again.one_s + (N_TOGETHER - 1) * beside.itl_p50_ms / 1e3
    # One more for the token in front of the question that models without marks want anew.
    most_evaluated = again.n_question + 1
    limits = [
        ("ITL p95 beside images, ms", beside.itl_p95_beside_ms, most_itl_ms),
        (f"first tokens of {N_TOGETHER} with one image, s", again.all_s, most_all_s),
        (f"times it was encoded for the {N_TOGETHER}", again.n_encoded, 1),
        ("times it was encoded again", again.n_encoded_again, 0),
        ("inputs evaluated when asked again", again.again.n_evaluated, most_evaluated),
    ]
    return [
        *(at_most(name, value, limit) for name, value, limit in limits),
        *grown.bars("request"),
        at_least("images encoded beside text", beside.n_encoded, 1),
    ]


async def _measure_beside(client: Client, new: Iterator[bytes], load: ImageLoad) -> Beside:
    before = await client.status()
    media_steps_ms = [await measure_media_step(client, next(new)) for _ in range(N_ALONE)]
    encode_s = (await client.status()).encode_s - before.encode_s
    undisturbed = await run_clients([client], _texts(load, seed=1))
    n_before = (await client.status()).n_images_encoded
    async with asking_on(client, new):
        disturbed = await run_clients([client], _texts(load, seed=2))
    n_encoded = (await client.status()).n_images_encoded - n_before
    return Beside(
        itl_p50_ms=undisturbed.median.itl_p50_ms,
        itl_p95_ms=undisturbed.median.itl_p95_ms,
        itl_p95_beside_ms=disturbed.median.itl_p95_ms,
        media_step_ms=median(media_steps_ms),
        encode_ms=encode_s / N_ALONE * 1e3,
        n_encoded=n_encoded,
    )


def _texts(load: ImageLoad, seed: int) -> Load:
    return Load(
        n_streams=N_TEXT_STREAMS,
        n_prompt=N_TEXT_PROMPT,
        max_tokens=load.max_tokens,
        n_rounds=load.n_rounds,
        seed=seed,
    )


async def _measure_again(client: Client, new: Iterator[bytes]) -> Again:
    alone = [await ask(client, next(new), " Question 0:") for _ in range(N_ALONE)]
    picture = next(new)
    before = (await client.status()).n_images_encoded
    all_s = await ask_together(client, picture, N_TOGETHER)
    after = (await client.status()).n_images_encoded
    question = " And once more?"
    again = await ask(client, picture, question)
    return Again(
        one_s=median(answer.ttft_s for answer in alone),
        all_s=all_s,
        n_encoded=after - before,
        again=again,
        n_encoded_again=(await client.status()).n_images_encoded - after,
        n_question=len(await client.tokenize(question)),
    )


async def _measure_growth(client: Client, pid: int, load: ImageLoad, tell: Tell) -> Growth:
    new = pictures(GROWTH_SIDE, "BMP")
    seen = []
    n_all = load.n_warm_up + load.n_requests
    for n_done in range(0, n_all, N_BETWEEN_LOOKS):
        if n_done >= load.n_warm_up:
            seen.append(holding(pid, n_done))
        if n_done % 100 == 0:
            tell(f"{n_done} of {n_all} images")
        await _ask_some(client, [next(new) for _ in range(N_BETWEEN_LOOKS)])
    return growth([*seen, holding(pid, n_all)])


async def _ask_some(client: Client, files: Sequence[bytes]) -> None:
    limiter = anyio.CapacityLimiter(N_AT_ONCE)

    async def ask_one(file: bytes) -> None:
        async with limiter:
            await ask(client, file, QUESTION)

    async with anyio.create_task_group() as tasks:
        for file in files:
            tasks.start_soon(ask_one, file)
