"""The load of a model, seen from those who wait for it."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from runnerd.config import Config
from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig
from runnerd.errors import BadModel, LoadFailed
from runnerd.runner import Runner
from runnerd_protocol.messages import (
    Accepted,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Status,
)
from tests.daemon import PATIENCE_S, RawClient, raw_client, running_daemon
from tests.engines import GatedLoad

pytestmark = pytest.mark.anyio


async def test_requests_come_in_during_the_load_and_are_served_after_it_in_order() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False, n_slots=1) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        await daemon.until(lambda: daemon.runner.loading.fraction == 0.5)
        for i in range(6):
            await (client, other)[i % 2].send(Generate(i, "x", max_tokens=1))
            accepted = await (client, other)[i % 2].receive_a(Accepted)
            assert (accepted.state, accepted.load_fraction) == ("loading", 0.5)
            assert accepted.n_ahead == max(0, i - 1)
        await client.send(GetStatus(9))
        status = await client.receive_a(Status)
        assert (status.state, status.load_phase, status.n_waiting) == ("loading", "weights", 5)
        order: list[int] = []

        async def note_ends(side: RawClient) -> None:
            for _ in range(3):
                order.append((await side.receive_a(Finished)).request_id)

        load.let_go()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_ends, client)
            tasks.start_soon(note_ends, other)
        assert order[0::2] == sorted(order[0::2])
        assert sorted(order) == list(range(6))
        await daemon.has_all_slots()


@pytest.mark.parametrize(
    ("error", "text"),
    [(BadModel("cut short"), "cut short"), (RuntimeError("a bug"), "internal error")],
)
async def test_a_failed_load_fails_whoever_waits_and_whoever_comes(
    error: Exception, text: str
) -> None:
    load = GatedLoad(error)
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x"), Generate(2, "y"))
        await client.receive_a(Accepted, 2)
        load.let_go()
        for _ in range(2):
            failed = await client.receive_a(Failed)
            assert failed.code == "load_failed"
            assert text in failed.message
        await daemon.has_ended.wait()
        assert daemon.error is error
        await client.send(Generate(3, "z"), GetStatus(4))
        assert (await client.receive_a(Failed)).code == "load_failed"
        assert (await client.receive_a(Status)).state == "failed"


async def test_who_waited_for_the_load_is_not_passed_by_a_newcomer() -> None:
    load = GatedLoad()
    runner = Runner(Config(EngineConfig("layers=0", "reference")), load)
    order: list[int] = []

    async def wait(number: int) -> None:
        await runner.vocabulary.loaded()
        order.append(number)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            async with anyio.create_task_group() as waiters:
                for number in range(5):
                    waiters.start_soon(wait, number)
                    await anyio.wait_all_tasks_blocked()
                load.let_go()
                while not order:
                    await checkpoint()
                await wait(5)
            runner.stop()
        await runner.close()
    assert order == [0, 1, 2, 3, 4, 5]


async def test_an_engine_that_cannot_be_scheduled_fails_the_load() -> None:
    runner = Runner(Config(EngineConfig("layers=0", "reference", n_ctx=1)), open_engine)
    refused: list[str] = []

    async def wait() -> None:
        try:
            await runner.vocabulary.loaded()
        except LoadFailed as err:
            refused.append(str(err))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(AssertionError, match="one sequence alone"):
                await runner.run()
        await runner.close()
    assert refused == ["the model could not be loaded: an internal error"]
