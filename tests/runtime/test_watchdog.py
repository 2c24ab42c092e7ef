"""Pings come while all is well, and at no other time."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import anyio
import pytest
from structlog.testing import capture_logs

from runnerd.client import connect
from runnerd.systemd.notifier import Notifier
from runnerd.systemd.watchdog import SHORTEST_S, Watchdog
from runnerd.vital_signs import VitalSigns
from runnerd_protocol.messages import Embed
from tests.daemon import PATIENCE_S, Daemon, raw_client, running_daemon
from tests.media.encode_engine import EncodeEngine, Request, ask
from tests.pass_engine import PassEngine
from tests.service_manager import Hearing, hearing

pytestmark = pytest.mark.anyio

PERIOD_S = 0.3
LONG_PERIOD_S = 0.9  # where a machine that has other things to do must not look late
STEP_TIMEOUT_S = 0.3


class Health:
    """What the engine's side says of itself."""

    def __init__(self) -> None:
        self.doubt = ""


@asynccontextmanager
async def watched(health: Health, period_s: float = PERIOD_S) -> AsyncIterator[Hearing]:
    with TemporaryDirectory() as folder, hearing(f"{folder}/notify") as manager:
        async with anyio.create_task_group() as tasks:
            watchdog = Watchdog(period_s, Notifier(manager.address), lambda: health.doubt)
            tasks.start_soon(watchdog.run)
            yield manager
            tasks.cancel_scope.cancel()


async def pings_for(manager: Hearing, seconds: float) -> int:
    manager.so_far()
    await anyio.sleep(seconds)  # what is not to come sets no event
    return manager.so_far().count("WATCHDOG=1")


async def test_three_pings_come_in_a_period() -> None:
    async with watched(Health(), LONG_PERIOD_S) as manager:
        await manager.until("WATCHDOG=1")
        started_at = anyio.current_time()
        for _ in range(3):
            await manager.until("WATCHDOG=1")
        assert anyio.current_time() - started_at > 0.8


@pytest.mark.parametrize("period_s", [1e-6, 2**63 / 1e6])
async def test_a_period_that_nobody_means_makes_no_flood_and_no_crash(period_s: float) -> None:
    async with watched(Health(), period_s) as manager:
        assert await pings_for(manager, 3 * SHORTEST_S) <= 4


async def test_while_there_is_doubt_no_ping_comes_and_one_line_says_why() -> None:
    health = Health()
    with capture_logs() as lines:
        async with watched(health, LONG_PERIOD_S) as manager:
            await manager.until("WATCHDOG=1")
            health.doubt = "the engine is stuck"
            assert await manager.until("STATUS") == ["STATUS=stalled: the engine is stuck"]
            assert await pings_for(manager, 0.5) == 0
            health.doubt = ""
            assert await manager.next() == "STATUS="
            await manager.until("WATCHDOG=1")
    assert [line["event"] for line in lines] == ["watchdog.withheld", "watchdog.resumed"]
    assert lines[0]["cause"] == "the engine is stuck"


async def test_an_event_loop_that_was_late_has_to_be_in_time_once_before_the_next_ping() -> None:
    with capture_logs() as lines:
        async with watched(Health(), LONG_PERIOD_S) as manager:
            await manager.until("WATCHDOG=1")
            await manager.until("WATCHDOG=1")  # now it waits for the time of the next one
            time.sleep(LONG_PERIOD_S)  # noqa: ASYNC251  # what must not be, and is
            assert "late" in await manager.next()
            await manager.until("WATCHDOG=1")
    assert [line["event"] for line in lines] == ["watchdog.withheld", "watchdog.resumed"]


# --- what there is to doubt ----------------------------------------------------------------

ON_ONE_BACKEND = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # they wait a lot


@asynccontextmanager
async def pinging(daemon: Daemon) -> AsyncIterator[Hearing]:
    health = VitalSigns(daemon.runner)
    with TemporaryDirectory() as folder, hearing(f"{folder}/notify") as manager:
        async with anyio.create_task_group() as tasks:
            watchdog = Watchdog(PERIOD_S, Notifier(manager.address), health.doubt)
            tasks.start_soon(watchdog.run)
            await manager.until("WATCHDOG=1")
            yield manager
            tasks.cancel_scope.cancel()


@ON_ONE_BACKEND
async def test_pings_go_on_while_nothing_is_asked() -> None:
    async with running_daemon(step_timeout_s=STEP_TIMEOUT_S) as daemon, pinging(daemon) as manager:
        assert await pings_for(manager, 2 * STEP_TIMEOUT_S) > 2


@ON_ONE_BACKEND
async def test_pings_go_on_while_steps_run() -> None:
    async with running_daemon("layers=0,step_ms=2") as daemon, pinging(daemon) as manager:
        async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
            await anext(stream)
            assert await pings_for(manager, 1.5 * PERIOD_S) > 1


@ON_ONE_BACKEND
async def test_pings_go_on_in_a_long_step_until_it_is_too_long() -> None:
    async with (
        running_daemon(step_timeout_s=3 * STEP_TIMEOUT_S) as daemon,
        pinging(daemon) as manager,
    ):
        async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
            await anext(stream)
            daemon.engine.faults.hang()
            await daemon.until(daemon.engine.faults.hanging.is_set)
            assert await pings_for(manager, STEP_TIMEOUT_S) > 1
            assert (await manager.until("STATUS"))[-1].startswith("STATUS=stalled: step in prog")
            assert await pings_for(manager, PERIOD_S) == 0
            daemon.engine.faults.release()
            await manager.until("WATCHDOG=1")
            await anext(stream)


@ON_ONE_BACKEND
async def test_pings_stop_in_a_pass_of_embeddings_that_takes_too_long() -> None:
    async with (
        running_daemon(load=PassEngine, step_timeout_s=STEP_TIMEOUT_S) as daemon,
        pinging(daemon) as manager,
    ):
        engine = daemon.engine_as(PassEngine)
        engine.shut()
        async with raw_client(daemon) as client:
            await client.send(Embed(1, ["text"]))
            await engine.at_pass()
            await manager.until("STATUS=stalled: step in progress")
            assert await pings_for(manager, PERIOD_S) == 0
            engine.open()
            await manager.until("WATCHDOG=1")


@ON_ONE_BACKEND
async def test_pings_stop_in_an_encode_that_takes_too_long() -> None:
    async with (
        running_daemon(
            "layers=0,patch=8", load=EncodeEngine, step_timeout_s=STEP_TIMEOUT_S
        ) as daemon,
        pinging(daemon) as manager,
    ):
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, Request(), "text", 1)
            await engine.at_encode()
            await manager.until("STATUS=stalled: encode in progress")
            assert await pings_for(manager, PERIOD_S) == 0
            engine.open()
            await manager.until("WATCHDOG=1")


@ON_ONE_BACKEND
async def test_pings_go_on_during_the_drain_and_after_it() -> None:
    async with running_daemon("layers=0,step_ms=2") as daemon, pinging(daemon) as manager:
        async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
            await anext(stream)
            daemon.runner.stop()
            assert await pings_for(manager, 1.5 * PERIOD_S) > 1
            daemon.runner.cancel_all()
            with anyio.fail_after(PATIENCE_S):
                await daemon.has_ended.wait()
            assert await pings_for(manager, 1.5 * PERIOD_S) > 1


async def test_a_decode_loop_that_neither_works_nor_rests_is_doubted() -> None:
    async with running_daemon() as daemon:
        loop, signs = daemon.runner.loop, VitalSigns(daemon.runner)
        assert loop is not None
        await daemon.until(lambda: loop.pulse.is_resting)
        assert signs.doubt() == ""
        loop.pulse.is_resting = False  # as if it waited for something else
        assert signs.doubt() == "the decode loop does not go on"
        loop.pulse.n_beats += 1
        assert signs.doubt() == ""
        loop.pulse.is_resting = True
