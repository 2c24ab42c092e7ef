"""Embeddings: many in one request against one by one, and what generation beside them feels."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import anyio
from msgspec import Struct

from loadtest.prompts import cut, prompt_texts
from loadtest.streams.measure import Report
from loadtest.streams.recording import Load
from loadtest.streams.run import run_clients
from runnerd.client import Client, connect
from runnerd_protocol.messages import Prompt, TokensPart

MEAN_SHARE = 4  # the longest input is so many times the mean of them all


class EmbeddingReport(Struct, frozen=True, kw_only=True):
    """What embeddings cost: medians over the rounds.

    `together_s` and `alone_s`: the same inputs in one request, and one request after the other.
    `beside_per_s`: inputs embedded a second while the streams generated.
    """

    load: Load
    n_inputs: int
    n_tokens: int
    together_s: float
    alone_s: float
    largest_difference: float
    itl_p95_ms: float
    itl_p95_beside_ms: float
    tokens_per_s: float
    tokens_per_s_beside: float
    beside_per_s: float

    @property
    def ratio(self) -> float:
        """How much faster one request is than one by one."""
        return self.alone_s / self.together_s


async def measure_embeddings(
    socket: Path, load: Load, n_inputs: int, n_longest: int
) -> EmbeddingReport:
    """Measure a daemon; its model must make embeddings."""
    async with connect(socket) as client, connect(socket) as other:
        inputs = await _mixed(client, load.seed, n_inputs, n_longest)
        await client.embed(inputs[:1])  # the first one makes the context
        pairs = [await _compare(client, inputs) for _ in range(load.n_rounds)]
        without = await run_clients([client], load)
        beside, n_beside, elapsed_s = await _run_beside(client, other, inputs, load)
    return EmbeddingReport(
        load=load,
        n_inputs=n_inputs,
        n_tokens=sum(map(_n_tokens, inputs)),
        together_s=median(together_s for together_s, _, _ in pairs),
        alone_s=median(alone_s for _, alone_s, _ in pairs),
        largest_difference=max(difference for _, _, difference in pairs),
        itl_p95_ms=without.median.itl_p95_ms,
        itl_p95_beside_ms=beside.median.itl_p95_ms,
        tokens_per_s=without.median.tokens_per_s,
        tokens_per_s_beside=beside.median.tokens_per_s,
        beside_per_s=n_beside / elapsed_s,
    )


async def _mixed(client: Client, seed: int, n_inputs: int, n_longest: int) -> list[Prompt]:
    """Return inputs of many lengths, most of them short."""
    rng = Random(seed)
    inputs: list[Prompt] = []
    for text in prompt_texts(seed, 0, n_inputs, n_longest):
        n_tokens = 1 + int((n_longest - 1) * rng.random() ** (MEAN_SHARE - 1))
        inputs.append([TokensPart(cut(await client.tokenize(text), n_tokens))])
    return inputs


def _n_tokens(prompt: Prompt) -> int:
    return sum(len(part.tokens) for part in prompt if isinstance(part, TokensPart))


async def _compare(client: Client, inputs: list[Prompt]) -> tuple[float, float, float]:
    """Return the seconds together and one by one, and how far the vectors are apart at most."""
    started_at = perf_counter()
    together = await client.embed(inputs)
    together_s = perf_counter() - started_at
    started_at = perf_counter()
    alone = [(await client.embed([each]))[0] for each in inputs]
    alone_s = perf_counter() - started_at
    return together_s, alone_s, max(map(_difference, together, alone))


def _difference(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


async def _run_beside(
    client: Client, other: Client, inputs: list[Prompt], load: Load
) -> tuple[Report, int, float]:
    """Put the load on a daemon that embeds all the while; return how many inputs it has done."""
    started_at = perf_counter()
    before = (await client.status()).n_embedded
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_embed_on, other, inputs)
        beside = await run_clients([client], load)
        n_beside = (await client.status()).n_embedded - before
        elapsed_s = perf_counter() - started_at
        tasks.cancel_scope.cancel()
    return beside, n_beside, elapsed_s


async def _embed_on(client: Client, inputs: list[Prompt]) -> None:
    while True:
        await client.embed(inputs)
