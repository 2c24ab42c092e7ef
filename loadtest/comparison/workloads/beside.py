"""Plain streams, and beside them what may slow them down: schemas, embeddings, images."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import anyio
from msgspec.structs import replace

from loadtest.comparison.exchange import Ask, Exchange, Peer
from loadtest.comparison.figures import Figures, measure_exchanges
from loadtest.comparison.workloads.asking import Prompts, ask_together, begin, generating
from loadtest.pictures import picture
from loadtest.rates import rate

N_PROMPT = 64
N_INPUTS, INPUT_TOKENS = 16, 32
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple")
QUESTION_TOKENS = 12
N_IMAGE_ANSWER = 16
ENDLESS = 1500  # tokens: a stream is to outlast all images, and is cancelled after them

# Strings without an end in sight: a schema that a model could satisfy in a few tokens says
# nothing about the pace. What is cut off at the length asked for is no whole JSON, then.
SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string", "minLength": 4}, "minItems": 100}
    },
    "required": ["names"],
    "additionalProperties": False,
}


async def json(peer: Peer, seed: int, n_streams: int, n_generated: int) -> list[Exchange]:
    """Free streams alone, then with as many beside them whose tokens a JSON schema constrains.

    Both times there are `n_streams`: how much of the pace the schema costs, and whom.
    """
    prompts = Prompts(peer, seed)
    alone = await ask_together(peer, await _asks(prompts, "alone", n_streams, n_generated))
    free = await _asks(prompts, "free", n_streams // 2, n_generated)
    constrained = [
        replace(ask, json_schema=SCHEMA)
        for ask in await _asks(prompts, "constrained", n_streams - len(free), n_generated)
    ]
    return [*alone, *await ask_together(peer, [*free, *constrained])]


def json_figures(exchanges: Sequence[Exchange]) -> Figures:
    """Return the pace with constrained streams to that without."""
    alone = [each for each in exchanges if each.role == "alone"]
    beside = [each for each in exchanges if each.role != "alone"]
    before = measure_exchanges(alone, len(alone)).get("decode_tokens_per_s")
    after = measure_exchanges(beside, len(beside)).get("decode_tokens_per_s")
    return {"json_ratio": after / before} if before and after else {}


async def embeddings(peer: Peer, seed: int, n_streams: int, n_generated: int) -> list[Exchange]:
    """Streams alone, then with embeddings beside them, one request after the other.

    How much of the pace embeddings cost, and how many there are meanwhile.
    """
    prompts = Prompts(peer, seed)
    inputs = await prompts.several(N_INPUTS, INPUT_TOKENS)
    await peer.embed(inputs)  # whatever has to be started for it is there then
    alone = await ask_together(peer, await _asks(prompts, "alone", n_streams, n_generated))
    asks = await _asks(prompts, "beside", n_streams, n_generated)
    embedded: list[Exchange] = []
    is_over = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_embed_until, is_over, peer, inputs, embedded)
        beside = await ask_together(peer, asks)
        is_over.set()
    return [*alone, *beside, *embedded]


def embedding_figures(exchanges: Sequence[Exchange]) -> Figures:
    """Return how many inputs were embedded a second while streams generated."""
    embedded = [each for each in exchanges if each.role == "embedding"]
    took_s = sum(each.ended_at - each.asked_at for each in embedded)
    return {"embedded_per_s": rate(N_INPUTS * len(embedded), took_s)} if embedded else {}


async def images(peer: Peer, seed: int, n_images: int) -> list[Exchange]:
    """Streams generate, and images come, all at once: whether the streams stop for them."""
    prompts = Prompts(peer, seed)
    streams = await _asks(prompts, "stream", 4, ENDLESS)
    with TemporaryDirectory(prefix="loadtest-") as folder:
        asks = [
            Ask(
                role="image",
                prompt=await prompts.new(QUESTION_TOKENS),
                max_tokens=N_IMAGE_ANSWER,
                image=await _picture(Path(folder), number),
            )
            for number in range(n_images)
        ]
        async with generating(peer, streams) as seen:
            of_images = await ask_together(peer, asks)
    return [*seen, *of_images]


async def _asks(prompts: Prompts, role: str, n_streams: int, max_tokens: int) -> list[Ask]:
    return [
        Ask(role=role, prompt=prompt, max_tokens=max_tokens)
        for prompt in await prompts.several(n_streams, N_PROMPT)
    ]


async def _embed_until(
    is_over: anyio.Event,
    peer: Peer,
    inputs: Sequence[Sequence[int]],
    embedded: list[Exchange],
) -> None:
    """Embed the same again and again, nothing of which is cached; the last one is not cut off."""
    ask = Ask(role="embedding", prompt=[token for each in inputs for token in each], max_tokens=0)
    while not is_over.is_set():
        exchange = begin(ask)
        await peer.embed(inputs)
        exchange.ended, exchange.ended_at = "length", perf_counter()
        exchange.n_evaluated = exchange.n_prompt
        embedded.append(exchange)


async def _picture(folder: Path, number: int) -> Path:
    """Write a picture that no other request has."""
    path = folder / f"{number}.png"
    colours = [COLOURS[number % len(COLOURS)], COLOURS[number // len(COLOURS) % len(COLOURS)]]
    await anyio.Path(path).write_bytes(picture(colours))
    return path
