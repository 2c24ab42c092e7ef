"""Many connections: limits, refusals, and nothing left over."""

import gc
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import psutil
import pytest

from runnerd.client import ConnectionLost, connect
from runnerd.config import SessionLimits
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Finished, Generate, ProtocolError, Status, Subscribe
from tests.daemon import HELLO, PATIENCE_S, raw_client, running_daemon
from tests.engines import GatedLoad, SteppedEngine

pytestmark = pytest.mark.anyio


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_one_connection_too_many_is_told_so() -> None:
    async with running_daemon(max_connections=2) as daemon:
        async with raw_client(daemon), raw_client(daemon) as second:
            async with raw_client(daemon, greets=False) as third:
                (error,) = await third.rest()
                assert isinstance(error, ProtocolError)
                assert error.code == "too_many_connections"
                assert error.details == {"max_connections": 2}
            await second.send(Generate(1, "x", max_tokens=1))
            await second.receive_a(Finished)
        await daemon.until(lambda: daemon.server.n_connections == 0)
        async with connect(daemon.path) as client:
            assert (await client.status()).n_connections == 1


async def test_the_client_is_told_why_it_was_refused() -> None:
    async with running_daemon(max_connections=1) as daemon, connect(daemon.path):
        for _ in range(20):  # whichever comes first, its hello or our refusal
            with pytest.raises(ConnectionLost, match="too_many_connections"):
                async with connect(daemon.path):
                    pass


async def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    async with running_daemon(max_connections=100) as daemon:
        await daemon.has_all_slots()

        async def come_and_go(n_times: int) -> None:
            for i in range(n_times):
                async with raw_client(daemon, greets=i % 2 == 0) as client:
                    if i % 3 == 0:
                        await client.send(HELLO, Generate(1, "x", shift=True))

        await come_and_go(300)
        await daemon.until(lambda: daemon.server.n_connections == 0)
        gc.collect()
        before = n_descriptors(), threading.active_count(), psutil.Process().memory_info().rss
        await come_and_go(500)
        await daemon.until(lambda: daemon.server.n_connections == 0)
        gc.collect()
        after = n_descriptors(), threading.active_count(), psutil.Process().memory_info().rss
        assert after[0] == before[0]
        assert after[1] <= before[1]  # an idle worker thread ends after a while
        assert after[2] < before[2] + 4 * 2**20
        assert daemon.runner.loop is not None
        assert len(daemon.runner.loop._audience) == 0
        await daemon.has_all_slots()


async def test_closing_gives_everybody_the_last_answers() -> None:
    async with (
        running_daemon(load=SteppedEngine) as daemon,
        raw_client(daemon) as subscriber,
        raw_client(daemon) as client,
        raw_client(daemon) as idle,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await subscriber.send(Subscribe(1, interval_s=3600))
        await subscriber.receive_a(Status)
        await client.send(Generate(1, "x"))
        await engine.at_step()
        daemon.runner.stop()
        daemon.runner.cancel_all()
        engine.let_all_go()
        await daemon.has_ended.wait()
        with anyio.fail_after(PATIENCE_S):
            await daemon.server.close()
        statuses = await subscriber.rest()
        assert isinstance(statuses[-1], Status)
        assert (statuses[-1].state, statuses[-1].last) == ("stopped", True)
        assert isinstance((await client.rest())[-1], Finished)
        assert await idle.rest() == []


async def test_closing_waits_only_so_long_for_a_client_that_reads_nothing() -> None:
    limits = SessionLimits(outbox_bytes=512)
    with anyio.fail_after(PATIENCE_S):
        async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
            await client.send(*(Generate(i, "x", shift=True, return_tokens=True) for i in range(4)))
            batcher = daemon.runner.batcher
            assert batcher is not None
            await daemon.until(lambda: any(s.paused for s in batcher.residency.running))


async def test_closing_waits_for_no_frame_that_is_not_whole() -> None:
    frame = encode_frame(Generate(1, "x" * 10**6))
    async with running_daemon() as daemon, AsyncExitStack() as stack:
        cuts = (2, 4, 100, len(frame) - 1)
        clients = [await stack.enter_async_context(raw_client(daemon)) for _ in cuts]
        for client, n_bytes in zip(clients, cuts, strict=True):
            await client.send(frame[:n_bytes])
        with anyio.fail_after(PATIENCE_S):
            daemon.runner.stop()
            await daemon.has_ended.wait()
            await daemon.server.close()
        assert daemon.server.n_connections == 0
        assert [await client.rest() for client in clients] == [[]] * len(cuts)


async def test_connections_are_taken_during_the_load() -> None:
    load = GatedLoad()
    async with running_daemon(load=load, waits_for_load=False) as daemon, AsyncExitStack() as stack:
        for _ in range(20):
            client = await stack.enter_async_context(connect(daemon.path))
            assert (await client.status()).state == "loading"
        load.let_go()
        assert (await client.model()).name == "reference"
