"""What a daemon answers to those who ask for memory: what is loaded, or a process's plan."""

from collections.abc import Callable

import anyio
import pytest

from runnerd.client import Client, RequestFailed, connect
from runnerd.config import SessionLimits
from runnerd.errors import BadModel
from runnerd.memory_report import memory_of
from runnerd.planning import MAX_PLANS
from runnerd_protocol.messages import Cancel, Failed, MemoryReport, Plan
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.engines import GatedLoad, SteppedEngine
from tests.own_children import own_children

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("counts_children")]


async def until(holds: Callable[[], object]) -> None:
    """Wait for another process."""
    with anyio.fail_after(PATIENCE_S):
        while not holds():
            await anyio.sleep(0.002)


async def failure_of(client: Client, **sizes: int | str) -> Failed:
    """Return why a plan was refused."""
    with pytest.raises(RequestFailed) as caught:
        await client.plan(**sizes)  # type: ignore[arg-type]  # mypy knows one type for all
    return caught.value.failed


# --- what is loaded -----------------------------------------------------------------------------


async def test_what_is_loaded_is_told_without_a_process() -> None:
    async with running_daemon("layers=2", n_ctx=64, n_slots=2) as daemon:
        async with connect(daemon.path) as client:
            memory = await client.plan()
        assert not own_children()
        assert memory == memory_of(daemon.engine.memory, daemon.runner.config)
        assert (memory.n_ctx, memory.n_slots, memory.n_layers) == (64, 2, 2)
        assert len(memory.layers) == 3


async def test_it_is_told_amid_a_step() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, connect(daemon.path) as client:
        async with client.generate("hello") as stream:
            await daemon.engine_as(SteppedEngine).at_step()
            assert (await client.plan()).model == "reference"
            daemon.engine_as(SteppedEngine).let_all_go()
            await anext(stream)


# --- other sizes --------------------------------------------------------------------------------


async def test_other_sizes_are_planned_and_the_rest_is_as_configured() -> None:
    async with running_daemon("layers=2", n_ctx=64, n_slots=2) as daemon:
        async with connect(daemon.path) as client:
            loaded = await client.plan()
            planned = await client.plan(n_ctx=128)
    assert (planned.n_ctx, planned.n_slots) == (128, 2)
    assert planned.devices[0].kv_bytes == 2 * loaded.devices[0].kv_bytes
    assert planned.devices[0].weight_bytes == loaded.devices[0].weight_bytes
    assert planned.cache_bytes == loaded.cache_bytes


async def test_the_same_sizes_give_the_plan_of_what_is_loaded() -> None:
    async with running_daemon("layers=2,window=8", n_ctx=64, n_slots=2) as daemon:
        async with connect(daemon.path) as client:
            loaded, planned = await client.plan(), await client.plan(n_ctx=64, n_slots=2)
    assert planned.layers == loaded.layers
    assert planned.devices[0].kv_bytes == loaded.devices[0].kv_bytes


async def test_it_is_planned_while_the_model_loads() -> None:
    load = GatedLoad()
    async with running_daemon("layers=2", load=load, waits_for_load=False) as daemon:
        async with connect(daemon.path) as client:
            memory = await client.plan()
            assert daemon.runner.engine is None
            assert memory.n_layers == 2
        load.let_go()


async def test_generations_go_on_while_it_is_planned() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, connect(daemon.path) as client:
        engine = daemon.engine_as(SteppedEngine)
        async with client.generate("hello") as stream, anyio.create_task_group() as tasks:
            await engine.at_step()
            tasks.start_soon(lambda: client.plan(n_ctx=64))
            await until(own_children)
            await engine.step(3)
            await anext(stream)
            engine.let_all_go()


# --- what cannot be planned ---------------------------------------------------------------------


async def test_a_size_that_cannot_be_is_refused_by_its_name() -> None:
    async with running_daemon(n_batch=32) as daemon, connect(daemon.path) as client:
        failed = await failure_of(client, n_slots=33)
    assert failed.code == "invalid_request"
    assert failed.details["field"] == "n_slots"
    assert failed.details["value"] == "33"


async def test_what_the_process_refuses_is_put_down_to_the_size() -> None:
    async with running_daemon(n_slots=4, n_ctx=64, n_cells=256, kv="split") as daemon:
        async with connect(daemon.path) as client:
            failed = await failure_of(client, n_ctx=128)
    assert failed.code == "invalid_request"
    assert (failed.details["field"], failed.details["value"]) == ("n_ctx", "128")
    assert "256 cells are less than 4 slots of 128" in failed.message


async def test_a_model_that_cannot_be_planned_is_unsupported() -> None:
    load = GatedLoad(BadModel("it is not to be"))
    async with running_daemon("fail_load=1", load=load, waits_for_load=False) as daemon:
        async with connect(daemon.path) as client:
            assert (await failure_of(client)).code == "unsupported"
            assert (await failure_of(client, n_ctx=64)).code == "unsupported"
        load.let_go()


async def test_after_a_load_that_failed_there_is_nothing_to_plan() -> None:
    async with running_daemon("fail_load=1") as daemon, connect(daemon.path) as client:
        failed = await failure_of(client)
    assert failed.code == "load_failed"
    assert failed.details["cause"] == "bad_model"


async def test_a_crash_of_the_process_leaves_the_daemon_as_it_was() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_one)
            failed = await failure_of(client, n_ctx=64)
        assert failed.code == "engine_failed"
        assert failed.message == "planning ended by SIGKILL"
        assert (await client.plan(n_ctx=64)).n_ctx == 64


async def kill_one() -> None:
    await until(own_children)
    own_children()[0].kill()


async def test_a_daemon_that_drains_plans_nothing_more() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, connect(daemon.path) as client:
        async with client.generate("hello", max_tokens=1) as stream:
            await daemon.engine_as(SteppedEngine).at_step()
            daemon.runner.stop()
            assert (await failure_of(client, n_ctx=64)).code == "shutting_down"
            assert (await client.plan()).model == "reference"
            daemon.engine_as(SteppedEngine).let_all_go()
            await stream.completion()


# --- one at a time ------------------------------------------------------------------------------


async def test_there_is_one_process_at_a_time_and_all_are_answered() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as one, connect(daemon.path) as two:
        n_ctxs: list[int] = []
        n_most = 0

        async def plan(client: Client, n_ctx: int) -> None:
            n_ctxs.append((await client.plan(n_ctx=n_ctx)).n_ctx)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for n_ctx, client in enumerate((one, two, one), 64):
                    tasks.start_soon(plan, client, n_ctx)
                while len(n_ctxs) < 3:
                    n_most = max(n_most, len(own_children()))
                    await anyio.sleep(0.002)
    assert sorted(n_ctxs) == [64, 65, 66]
    assert n_most == 1


async def test_a_connection_waits_for_few_plans_at_a_time() -> None:
    limits = SessionLimits(max_plans=2)
    async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
        await client.send(*(Plan(number, n_ctx=64) for number in range(3)))
        failed = await client.receive_a(Failed)
        assert (failed.request_id, failed.code, failed.retryable) == (2, "overloaded", True)
        assert failed.details == {"n_plans": 2, "max_plans": 2}
        assert {(await client.receive_a(MemoryReport)).request_id for _ in range(2)} == {0, 1}
        await client.send(Plan(2, n_ctx=64))
        assert (await client.receive_a(MemoryReport)).request_id == 2


async def test_few_plans_wait_over_all_connections() -> None:
    limits = SessionLimits(max_plans=100)
    async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
        await client.send(*(Plan(number, n_ctx=64) for number in range(MAX_PLANS + 1)))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.retryable) == ("overloaded", True)
        assert failed.details == {"n_plans": MAX_PLANS, "max_plans": MAX_PLANS}


# --- who wants it no more -----------------------------------------------------------------------


async def test_a_cancel_ends_the_process_and_is_answered() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Plan(1, n_ctx=64), Plan(2, n_ctx=64))
        await until(own_children)
        (process,) = own_children()
        await client.send(Cancel(1), Cancel(2))
        answers = [await client.receive_a(Failed) for _ in range(2)]
        assert {answer.request_id for answer in answers} == {1, 2}
        assert {answer.code for answer in answers} == {"cancelled"}
        assert not process.is_running()
        assert not own_children()


async def test_a_client_that_leaves_its_call_ends_the_process() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.plan(n_ctx=64))
            await until(own_children)
            tasks.cancel_scope.cancel()
        await until(lambda: not own_children())
        assert (await client.status()).state == "ready"


@pytest.mark.parametrize("n_plans", [1, 2])
async def test_a_client_that_goes_ends_the_process(n_plans: int) -> None:
    async with running_daemon() as daemon:
        async with raw_client(daemon) as client:
            await client.send(*(Plan(number, n_ctx=64) for number in range(n_plans)))
            await until(own_children)
        await daemon.until(lambda: not own_children() and not daemon.server.n_connections)
        async with connect(daemon.path) as other:
            assert (await other.plan(n_ctx=64)).n_ctx == 64


async def test_a_client_that_sends_no_more_gets_its_plan() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Plan(1, n_ctx=64))
        await client.stream.send_eof()
        (report,) = await client.rest()
        assert isinstance(report, MemoryReport)


async def test_a_daemon_that_ends_leaves_no_process() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Plan(1, n_ctx=64))
        await until(own_children)
    assert not own_children()
