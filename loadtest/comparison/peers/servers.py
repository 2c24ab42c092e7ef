"""A peer that speaks HTTP: a server that generates, and a second one that embeds.

Neither of the servers that are compared does both in one process (or only where nobody
generates), so embeddings have a process of their own, started when they are first asked for.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import NamedTuple, Protocol

import anyio
import httpx

from loadtest.comparison.exchange import Exchange, Usage
from loadtest.comparison.peers.http import PeerFailed, PeerGone, post
from loadtest.comparison.peers.process import PeerProcess, usage_of

DEATH_S = 2.0  # for a process to be gone, once its connections are


class Server(NamedTuple):
    """A process that answers, and the way to it."""

    process: PeerProcess
    client: httpx.AsyncClient


class StartServer(Protocol):
    """How a server is started that ends with its peer."""

    def __call__(self, *, is_embedder: bool) -> Awaitable[Server]:
        """Return it once it has loaded the model.

        Raises:
            PeerUnavailable: it cannot.
        """
        ...


class HttpPeer:
    """What adapters of such peers have in common."""

    def __init__(self, name: str, version: str, server: Server, start: StartServer) -> None:
        self.name = name
        self.version = version
        self.command: Sequence[str] = server.process.command
        self.client = server.client
        self.servers = [server]
        self._start = start
        self._starting = anyio.Lock()

    async def usage(self) -> Usage:
        """Return what its processes have used; of the one that embeds, once there is one."""
        return usage_of(server.process.pid for server in self.servers)

    @asynccontextmanager
    async def concluding(self, exchange: Exchange) -> AsyncIterator[None]:
        """Write down how an exchange has ended; one without a last word has failed."""
        failure = None
        try:
            yield
        except PeerFailed as err:
            failure = err
        exchange.ended_at = perf_counter()
        if failure is not None:
            exchange.ended, exchange.error = "failed", await self._explained(failure)
        elif not exchange.ended:
            exchange.ended, exchange.error = "failed", "the answer has no end"

    async def _explained(self, failure: PeerFailed) -> str:
        process = self.servers[0].process
        if isinstance(failure, PeerGone):
            with anyio.move_on_after(DEATH_S):
                await process.wait()
        return f"{failure}; {process.last_words}" if process.last_words else str(failure)

    async def timed_embeddings(self, path: str, body: object) -> float:
        """Ask for embeddings, and return how many seconds it took, without any start."""
        async with self._starting:
            if len(self.servers) == 1:
                self.servers.append(await self._start(is_embedder=True))
        started_at = perf_counter()
        await post(self.servers[1].client, path, body, object)
        return perf_counter() - started_at
