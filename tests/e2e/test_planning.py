"""A daemon that runs a real model says what other sizes of it would take, and goes on with it."""

from contextlib import suppress
from signal import SIGKILL, SIGTERM
from typing import TypedDict

import anyio
import psutil
import pytest

from runnerd.client import Client, ConnectionLost, RequestFailed, connect
from runnerd_protocol.messages import KVType
from tests.daemon_process import START_S, DaemonProcess, start_daemon_process
from tests.processes import Family

pytestmark = pytest.mark.anyio


class Sizes(TypedDict, total=False):
    """What a plan may be asked for."""

    n_ctx: int
    n_slots: int
    kv_type: KVType


@pytest.mark.llama
async def test_what_is_loaded_is_what_was_planned_for_it(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        loaded, planned = await client.plan(), await client.plan(n_ctx=512, n_slots=4)
    assert loaded.layers == planned.layers
    assert (loaded.n_ctx, loaded.n_cells, loaded.kv) == (planned.n_ctx, planned.n_cells, planned.kv)
    assert loaded.devices[0].kv_bytes == planned.devices[0].kv_bytes


@pytest.mark.llama
async def test_twice_the_context_takes_twice_the_cache(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        sizes = [await client.plan(n_ctx=n_ctx) for n_ctx in (512, 1024)]
    one, two = (size.devices[0] for size in sizes)
    assert two.kv_bytes == 2 * one.kv_bytes
    assert two.weight_bytes == one.weight_bytes


@pytest.mark.llama
@pytest.mark.parametrize(
    ("sizes", "field", "words"),
    [
        (Sizes(n_ctx=99999), "n_ctx", "trained for 8192"),
        (Sizes(n_slots=2, n_ctx=99999), "n_ctx", "trained for 8192"),
        (Sizes(kv_type="q8_0"), "kv_type", "flash attention is off"),
    ],
)
async def test_a_size_that_cannot_be_is_refused_by_its_name(
    sizes: Sizes, field: str, words: str, smollm2: DaemonProcess
) -> None:
    async with connect(smollm2.path) as client:
        with pytest.raises(RequestFailed, match=words) as caught:
            await client.plan(**sizes)
    failed = caught.value.failed
    assert (failed.code, failed.details["field"]) == ("invalid_request", field)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_daemon_plans_on_either_event_loop(backend: str) -> None:
    async with start_daemon_process("layers=1", "--async-backend", backend) as daemon:
        async with connect(daemon.path) as client:
            assert (await client.plan(n_ctx=64)).n_ctx == 64
        daemon.signal(SIGTERM)
        assert await daemon.exit_code() == 0


async def test_a_daemon_that_is_killed_amid_a_plan_leaves_no_process() -> None:
    async with start_daemon_process("layers=1") as daemon, connect(daemon.path) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(plan_until_killed, client)
            with anyio.fail_after(START_S):
                while not any(map(is_planning, daemon.facts.children())):
                    await anyio.sleep(0.002)
            family = Family(daemon.process.pid)
            daemon.signal(SIGKILL)
        assert family.has_ended()


def is_planning(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended
        return "plan" in process.cmdline()
    return False


async def plan_until_killed(client: Client) -> None:
    with pytest.raises(ConnectionLost):
        while True:
            await client.plan(n_ctx=64)
