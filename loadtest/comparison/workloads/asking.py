"""What workloads have in common: prompts that no other request has, and asking side by side.

A seed makes the same prompts for every system. Each turn has a seed of its own, so that no prompt
profits from another turn's.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from time import perf_counter

import anyio

from loadtest.comparison.exchange import Ask, Exchange, Peer
from loadtest.prompts import cut, prompt_texts

LOOK_AGAIN_S = 0.01
ENOUGH_TOKENS = 4  # of a stream that generates: past what its own prompt still delays


class Prompts:
    """Prompts of exact lengths in the tokens of a system's model; no two begin alike."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self._peer = peer
        self._seed = seed
        self._numbers = count()

    async def new(self, n_tokens: int) -> list[int]:
        """Return the next one.

        Raises:
            PromptTooShort: a word is less than a token here.
        """
        [text] = prompt_texts(self._seed, next(self._numbers), 1, n_tokens)
        return cut(await self._peer.tokenize(text), n_tokens)

    async def several(self, n_prompts: int, n_tokens: int) -> list[list[int]]:
        """Return the next ones."""
        return [await self.new(n_tokens) for _ in range(n_prompts)]


async def ask_one(peer: Peer, ask: Ask) -> Exchange:
    """Ask, and return what came of it."""
    exchange = begin(ask)
    await peer.ask(ask, exchange)
    return exchange


async def ask_together(peer: Peer, asks: Sequence[Ask]) -> list[Exchange]:
    """Ask all at once; return what came of each, in their order."""
    exchanges = [begin(ask) for ask in asks]
    async with anyio.create_task_group() as tasks:
        for ask, exchange in zip(asks, exchanges, strict=True):
            tasks.start_soon(peer.ask, ask, exchange)
    return exchanges


@asynccontextmanager
async def generating(peer: Peer, asks: Sequence[Ask]) -> AsyncIterator[list[Exchange]]:
    """Keep streams going as long as the block lasts; it begins when all of them generate.

    They should have more to generate than anything takes: what is left of them is cancelled.
    """
    exchanges: list[Exchange] = []
    async with anyio.create_task_group() as tasks:
        for ask in asks:
            exchanges.append(begin(ask))
            tasks.start_soon(peer.ask, ask, exchanges[-1])
        while not all(has_begun(each) for each in exchanges):  # noqa: ASYNC110
            await anyio.sleep(LOOK_AGAIN_S)  # a peer writes down what comes, and tells nobody
        yield exchanges
        tasks.cancel_scope.cancel()
    for each in exchanges:
        if not each.ended or each.ended == "cancelled":
            each.ended, each.ended_at = "cancelled", perf_counter()


def begin(ask: Ask) -> Exchange:
    """Return the record of a request that is made now."""
    return Exchange(role=ask.role, n_prompt=len(ask.prompt), asked_at=perf_counter())


def has_begun(exchange: Exchange) -> bool:
    """Say whether a stream generates, or never will."""
    return bool(exchange.ended) or exchange.n_generated >= ENOUGH_TOKENS
