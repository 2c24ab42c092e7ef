"""What those who watch a daemon are told at once: stalls, errors, and the end of a load."""

from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
import pytest
from anyio import to_thread

from runnerd.client import connect
from runnerd.condition import status
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.memory_plan import FailedAllocation
from runnerd.engine.reference import ReferenceEngine
from runnerd.errors import BadModel, OutOfMemory
from runnerd.state_facts import state_facts
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Status,
    Subscribe,
)
from tests.daemon import PATIENCE_S, Daemon, raw_client, running_daemon, started
from tests.engines import GatedLoad
from tests.memory_plans import small_plan

pytestmark = pytest.mark.anyio

NEVER_S = 3600.0  # the interval of who is only told of changes
N_PHASES = 2000  # each of them news of a kilobyte: a socket's buffer is full long before

PLAN = replace(small_plan(), n_ctx_fits=32, failed=FailedAllocation("KV cache", "cpu", 2000))


async def test_a_stalled_step_is_told_by_its_name() -> None:
    async with (
        running_daemon(step_timeout_s=0.1) as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        assert (await client.status()).stalled == ""
        daemon.engine.faults.hang()
        await stack.enter_async_context(client.generate("hang", shift=True))
        await to_thread.run_sync(daemon.engine.faults.hanging.wait)
        with anyio.fail_after(PATIENCE_S):
            async with client.subscribe(NEVER_S) as statuses:
                while (told := await anext(statuses)).state != "stalled":
                    assert told.stalled == ""
                assert told.stalled == "step"
                daemon.engine.faults.release()
                while (told := await anext(statuses)).state != "ready":
                    pass
                assert told.stalled == ""


async def test_an_error_of_a_request_is_told_at_once() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Subscribe(1, NEVER_S))
        assert (await client.receive_a(Status, 1)).error_code == ""
        await client.send(Generate(2, "x" * 10_000))
        failed = await client.receive_a(Failed, 2)
        assert failed.code == "prompt_too_long"
        await client.send(GetStatus(3))
        told = await client.receive_a(Status, 3)
        assert (told.error_code, told.error) == (failed.code, failed.message)
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Subscribe(1, NEVER_S))
        await client.receive_a(Status, 1)
        await client.send(Generate(2, "x" * 10_000))
        assert (await client.receive_a(Status, 1)).error_code == "prompt_too_long"


async def until_last(daemon: Daemon, load: GatedLoad) -> Status:
    """Watch a load to its end, and the daemon to its own; return the last word."""
    async with raw_client(daemon) as client:
        await client.send(Subscribe(1, NEVER_S))
        assert (await client.receive_a(Status, 1)).state == "loading"
        load.let_go()
        while (told := await client.receive_a(Status, 1)).state == "loading":
            pass
        assert told.state == "failed"
        await daemon.has_ended.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.server.close)
            while not told.last:
                told = await client.receive_a(Status, 1)
        return told


async def test_the_last_word_of_a_load_that_ran_out_of_memory_says_what_was_wanted() -> None:
    load = GatedLoad(OutOfMemory("no room", PLAN))
    async with running_daemon(load=load, waits_for_load=False) as daemon:
        told = await until_last(daemon, load)
        assert (told.error_code, told.error) == ("out_of_memory", "no room")
        memory = told.memory
        assert memory is not None
        assert (memory.n_ctx, memory.n_ctx_fits) == (64, 32)
        assert memory.failed is not None
        assert (memory.failed.what, memory.failed.n_bytes) == ("KV cache", 2000)
        assert [layer.kv_bytes for layer in memory.layers] == [3, 0]


async def test_the_last_word_of_a_load_that_has_failed_says_why() -> None:
    load = GatedLoad(BadModel("no model:\n\x1b[2J"))
    async with running_daemon(load=load, waits_for_load=False) as daemon:
        told = await until_last(daemon, load)
        assert (told.error_code, told.error) == ("bad_model", "no model: \ufffd[2J")
        assert told.memory is None


async def test_a_subscriber_that_does_not_read_finds_the_newest_and_the_last() -> None:
    gate = GatedLoad()

    def load(config: EngineConfig, progress: LoadProgress) -> ReferenceEngine:
        engine = gate(config, progress)
        for number in range(N_PHASES):
            progress(f"{number} {'x' * 1000}", 0.0)
        return engine

    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Subscribe(1, NEVER_S))
        await client.receive_a(Status, 1)
        gate.let_go()
        await daemon.until(lambda: daemon.runner.state == "ready")
        daemon.runner.stop()
        await daemon.has_ended.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.server.close)
            told = [each for each in await client.rest() if isinstance(each, Status)]
        assert [status.last for status in told] == [False] * (len(told) - 1) + [True]
        assert 10 < len(told) < N_PHASES
        assert told[-2].state != "loading"
        assert told[-1].state == "stopped"


async def test_who_waits_for_the_load_is_told_of_as_the_oldest_wait() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(GetStatus(9))
        assert (await client.receive_a(Status)).oldest_wait_s == 0
        await client.send(Generate(1, "x", max_tokens=1), Generate(2, "y", max_tokens=1))
        await client.receive_a(Accepted, 2)
        waits = [0.0]
        with anyio.fail_after(PATIENCE_S):
            while waits[-1] <= 0.01:  # told in milliseconds
                await client.send(GetStatus(9))
                waits.append((await client.receive_a(Status)).oldest_wait_s)
        assert waits == sorted(waits)
        await client.send(Cancel(1))
        await client.receive_a(Finished, 1)
        await client.send(GetStatus(9))
        assert (await client.receive_a(Status)).oldest_wait_s > 0
        load.let_go()
        await client.receive_a(Finished, 2)
        await client.send(GetStatus(9))
        assert (await client.receive_a(Status)).oldest_wait_s == 0


async def test_the_log_of_the_state_counts_slots_by_what_they_do() -> None:
    async with (
        running_daemon(n_slots=3) as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        await started(client, stack, 2)
        facts = state_facts(status(0, daemon.runner, 1, last=True))
        assert (facts["n_slots_generating"], facts["n_slots_prompt"]) == (2, 0)
        assert (facts["n_slots_free"], facts["stalled"], facts["error"]) == (1, "", "")
