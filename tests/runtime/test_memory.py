"""Requests that fail leave nothing behind, and not for the garbage collector to find either."""

import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from runnerd.config import ImageLimits
from runnerd_protocol import messages as wire
from runnerd_protocol.messages import Failed, Finished, Generate, MediaPart, TextPart
from tests.daemon import Daemon, RawClient, raw_client, running_daemon
from tests.engines import GatedLoad
from tests.holding import held
from tests.media.drawn import drawn

pytestmark = pytest.mark.anyio

N_REQUESTS = 12
N_BYTES = 2**20  # of each at least
LARGE = drawn(1, 700, 600, "BMP")


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Leave cycles where they are; count what is allocated."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    images = ImageLimits(store_bytes=2 * len(LARGE), pixel_bytes=0)
    async with running_daemon(images=images) as daemon:
        yield daemon


def distinct(number: int) -> bytes:
    """Return a file like the large one, but another."""
    return LARGE + bytes([number])


async def check_leaves_nothing(daemon: Daemon, before: int) -> None:
    await daemon.until(lambda: not any(held(daemon).values()))
    n_bytes = tracemalloc.get_traced_memory()[0] - before
    assert n_bytes < (N_REQUESTS - 2) * N_BYTES


def failing(kind: str, number: int) -> wire.ClientMessage:
    match kind:
        case "no image":
            return Generate(number, [MediaPart(bytes(N_BYTES) + bytes([number]))])
        case "broken":
            return Generate(number, [MediaPart(b"BM" + distinct(number)[2:-1000])])
        case "broken pixels":
            broken = drawn(number, 20, 20)[:-20] + bytes(N_BYTES)
            return Generate(number, [MediaPart(broken)])
        case "no room":
            files = [MediaPart(distinct(number)), MediaPart(distinct(number + 50))]
            return Generate(number, list(files))
        case "too long":
            return Generate(number, "x" * N_BYTES)
        case "no such token":
            return Generate(number, [TextPart("x" * N_BYTES), wire.TokensPart([10**6])])
        case "tokenize":
            return wire.Tokenize(number, [TextPart("x" * N_BYTES), wire.TokensPart([10**6])])
        case "embed":
            return wire.Embed(number, [[TextPart("x" * N_BYTES), wire.TokensPart([10**6])]])
        case _:
            return Generate(number, "x", json_schema="[" * N_BYTES)


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize(
    "kind",
    [
        "no image",
        "broken",
        "broken pixels",
        "no room",
        "too long",
        "no such token",
        "tokenize",
        "embed",
        "schema",
    ],
)
async def test_a_request_that_fails(daemon: Daemon, kind: str) -> None:
    async with raw_client(daemon) as client:
        for number in range(100, 103):  # threads keep what they made last
            await client.send(failing(kind, number))
            await client.receive_a(Failed)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(N_REQUESTS):
            await client.send(failing(kind, number))
            assert (await client.receive_a(Failed)).request_id == number
        await check_leaves_nothing(daemon, before)


@pytest.mark.usefixtures("no_gc")
async def test_a_request_that_is_cancelled_in_preparation(daemon: Daemon) -> None:
    async with raw_client(daemon) as client:
        before = tracemalloc.get_traced_memory()[0]
        async with daemon.runner.pictures._decoders:
            for number in range(N_REQUESTS):
                await client.send(Generate(number, [MediaPart(distinct(number))]))
                await daemon.until(lambda: held(daemon)["file bytes"] > 0)
                await client.send(wire.Cancel(number))
                await client.receive_a(Finished)
        await check_leaves_nothing(daemon, before)


@pytest.mark.usefixtures("no_gc")
async def test_a_request_that_a_full_queue_refuses() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False, n_slots=1, max_queue=0) as daemon,
        raw_client(daemon) as client,
    ):
        await fill(client)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(N_REQUESTS):
            await client.send(Generate(number, "x" * N_BYTES))
            assert (await client.receive_a(Failed, number)).code == "overloaded"
        n_bytes = tracemalloc.get_traced_memory()[0] - before
        load.let_go()
        assert n_bytes < (N_REQUESTS - 2) * N_BYTES


async def fill(client: RawClient) -> None:
    """Take the only place."""
    await client.send(Generate(1000, "x", max_tokens=1))
    with anyio.fail_after(20):
        await client.receive_a(wire.Accepted)
