"""A system under comparison that does as it is told: it answers at once, fails, or is not there."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import perf_counter

from loadtest.comparison.exchange import (
    Ask,
    Exchange,
    Peer,
    PeerUnavailable,
    Setup,
    StartPeer,
    Usage,
)

Answer = Callable[[Ask, Exchange], None]


def answer_at_once(ask: Ask, exchange: Exchange) -> None:
    n_tokens = ask.cancel_after or ask.max_tokens
    exchange.arrivals = [(perf_counter(), 1) for _ in range(n_tokens)]
    exchange.tokens = list(range(n_tokens))
    exchange.n_evaluated = exchange.n_prompt
    exchange.ended = "cancelled" if ask.cancel_after else "length"


def fail_to_stream(ask: Ask, exchange: Exchange) -> None:
    if ask.role == "warm-up":
        answer_at_once(ask, exchange)
    else:
        exchange.ended, exchange.error = "failed", "it is <b>full</b>"


class ScriptedPeer:
    """Words are tokens, of the number of their letters."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name = name
        self.version = f"{name} 1.0"
        self.command: Sequence[str] = (name, "--serve")
        self.asked: list[Ask] = []
        self._answer = answer

    async def tokenize(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    async def ask(self, ask: Ask, exchange: Exchange) -> None:
        self.asked.append(ask)
        self._answer(ask, exchange)
        exchange.ended_at = perf_counter()

    async def embed(self, inputs: Sequence[Sequence[int]]) -> float:
        return 0.001 * len(inputs)

    async def usage(self) -> Usage:
        return Usage(1000, 500, 0.1)


def scripted(peer: ScriptedPeer, log: list[str]) -> StartPeer:
    """Return how to start a peer; `log` is told of each start and end."""

    @asynccontextmanager
    async def start(setup: Setup) -> AsyncIterator[Peer]:
        log.append(f"{peer.name} starts")
        yield peer
        log.append(f"{peer.name} ends")

    return start


def absent(setup: Setup) -> AbstractAsyncContextManager[Peer]:
    raise PeerUnavailable("it is not built here")
