"""What peers that speak HTTP have in common: a connection, health, and events as they come."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TypeVar

import anyio
import httpx
import msgspec

from loadtest.comparison.exchange import Exchange, PeerUnavailable

START_S = 120.0  # to load the model and answer
LOOK_AGAIN_S = 0.02  # nothing tells when a server is ready: it is asked
JSON = {"Content-Type": "application/json"}
EVENT = "data: "
LAST_EVENT = "[DONE]"

T = TypeVar("T")


class PeerFailed(Exception):
    """A peer has refused a request, or its answer makes no sense."""


class PeerGone(PeerFailed):
    """The connection to a peer has broken, or there was none."""


@asynccontextmanager
async def connected(url: str, socket: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client for as many requests at once as are made; an answer may take any time.

    Each has a connection of its own: one that is kept may be closed by the server just when the
    next request is sent, which then is lost.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    transport = httpx.AsyncHTTPTransport(uds=socket, limits=limits, trust_env=False)
    async with httpx.AsyncClient(
        base_url=url, transport=transport, timeout=None, trust_env=False
    ) as client:
        yield client


async def answers(client: httpx.AsyncClient, path: str, check_runs: Callable[[], None]) -> None:
    """Wait until a server has loaded its model.

    Raises:
        PeerUnavailable: it has ended, or takes too long.
    """
    with anyio.move_on_after(START_S):
        while not await _is_healthy(client, path):
            check_runs()
            await anyio.sleep(LOOK_AGAIN_S)
        return
    raise PeerUnavailable(f"{client.base_url} has not answered within {START_S:g} s")


async def _is_healthy(client: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await client.get(path)).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False  # does not listen yet


async def post(client: httpx.AsyncClient, path: str, body: object, kind: type[T]) -> T:
    """Ask, and return the whole answer.

    Raises:
        PeerFailed: there is none, or not what was hoped for.
    """
    try:
        response = await client.post(path, content=msgspec.json.encode(body), headers=JSON)
    except httpx.HTTPError as err:
        raise PeerGone(f"{type(err).__name__}: {err}") from err
    if response.status_code != httpx.codes.OK:
        raise PeerFailed(_refusal(response))
    return _decoded(response.content, kind)


async def stream_events(
    client: httpx.AsyncClient,
    path: str,
    body: object,
    kind: type[T],
    take: Callable[[T], bool],
) -> None:
    """Ask, and hand over each event as it comes, until there are no more or `take` says False.

    What is left then is cut off: the server sees that its client has gone away.

    Raises:
        PeerFailed: the server has refused, or has gone.
    """
    content = msgspec.json.encode(body)
    failure: PeerFailed | None = None
    # Left by a cancellation, never by a break: only that ends the library's generators as well.
    with anyio.CancelScope() as enough:
        try:
            async with client.stream("POST", path, content=content, headers=JSON) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise PeerFailed(_refusal(response))
                async for line in response.aiter_lines():
                    event = line.removeprefix(EVENT)
                    if enough.cancel_called or event in (line, LAST_EVENT):
                        continue  # a blank line between events, or a comment that keeps us waiting
                    try:
                        goes_on = take(_decoded(event.encode(), kind))
                    except PeerFailed as err:
                        failure, goes_on = err, False
                    if not goes_on:
                        enough.cancel()
        except httpx.HTTPError as err:
            raise PeerGone(f"{type(err).__name__}: {err}") from err
    if failure is not None:
        raise failure


def note_tokens(exchange: Exchange, n_tokens: int) -> None:
    """Write down that tokens have come now."""
    if n_tokens > 0:
        exchange.arrivals.append((perf_counter(), n_tokens))


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as err:
        raise PeerFailed(f"an answer that makes no sense ({err}): {content[:200]!r}") from err


def _refusal(response: httpx.Response) -> str:
    return f"status {response.status_code}: {response.text[:400]}"
