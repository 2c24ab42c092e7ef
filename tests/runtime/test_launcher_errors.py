"""What a parent is told when a launch goes wrong in an unusual way, and that nothing stays."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal

import anyio
import psutil
import pytest

from runnerd.client import ConnectionLost
from runnerd.launcher import (
    ChildDied,
    Died,
    Restart,
    Restarted,
    Runner,
    RunnerStalled,
    StartFailed,
    launch,
)
from runnerd_protocol.messages import Status
from tests.own_children import own_children

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("counts_children")]

# Where the event loop makes no difference, and a process takes its time to start.
asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])
PATIENCE_S = 20.0
STALL_S = 3.0  # a process takes up to two to start where the machine is busy
QUICK = Restart(max_restarts=2, first_delay_s=0.01)


def launch_reference(
    model: str = "layers=0",
    *,
    restart: Restart | None = None,
    options: Sequence[str] = (),
    python: Path | str = sys.executable,
    stall_timeout_s: float = 60.0,
    on_stall: Literal["tell", "kill"] = "tell",
    on_line: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[Runner]:
    return launch(
        model,
        options=["--engine=reference", *options],
        restart=restart,
        stall_timeout_s=stall_timeout_s,
        on_stall=on_stall,
        on_line=on_line,
        python=str(python),
    )


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A daemon that never says a word."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    return python


@asyncio_only
async def test_a_child_that_never_answers_is_an_error_of_the_launch(silent: Path) -> None:
    with anyio.fail_after(PATIENCE_S), pytest.raises(RunnerStalled, match=r"\(start\)"):
        async with launch_reference(python=silent, stall_timeout_s=0.5):
            pytest.fail("nobody has answered")
    assert not own_children()


@asyncio_only
async def test_a_child_that_never_answers_is_killed_where_that_is_wanted(silent: Path) -> None:
    with anyio.fail_after(PATIENCE_S), pytest.raises(ChildDied) as caught:
        async with launch_reference(python=silent, stall_timeout_s=0.5, on_stall="kill"):
            pytest.fail("nobody has answered")
    assert caught.value.cause == "stalled"


@asyncio_only
async def test_who_waits_for_a_load_that_is_killed_for_a_stall_waits_for_the_next() -> None:
    n_stops = 0
    quick = launch_reference(
        "layers=0,load_ms=1600", restart=QUICK, stall_timeout_s=STALL_S, on_stall="kill"
    )
    async with quick as runner:

        def stop_once(status: Status) -> None:
            nonlocal n_stops
            if status.load_phase == "weights" and not n_stops:
                n_stops += 1
                os.kill(runner.pid, signal.SIGSTOP)

        assert (await runner.ready(stop_once)).state == "ready"
        assert (n_stops, runner.n_restarts) == (1, 1)


async def test_what_the_listener_to_stderr_raises_comes_out_as_it_is() -> None:
    def refuse(line: str) -> None:
        raise ValueError("the listener's own")

    with pytest.raises(ValueError, match="the listener's own"):
        async with launch_reference(on_line=refuse) as runner:
            await runner.ready()
            await anyio.sleep_forever()
    assert not own_children()


@pytest.mark.parametrize("model", ["with\0null", "x" * 200_000])
async def test_an_argument_that_no_process_can_get_is_a_failed_start(model: str) -> None:
    n_fds = psutil.Process().num_fds()
    with pytest.raises(StartFailed, match="cannot start"):
        async with launch_reference(model):
            pytest.fail("there is no such process")
    assert psutil.Process().num_fds() == n_fds


async def test_the_loss_of_another_connection_is_not_put_down_to_the_child() -> None:
    started_at = time.monotonic()
    with pytest.raises(ConnectionLost, match="another daemon"):
        async with launch_reference() as runner:
            await runner.ready()
            started_at = time.monotonic()
            raise ConnectionLost("another daemon has gone")
    assert time.monotonic() - started_at < 4.0  # it was not given time to end by itself


async def test_waiting_for_the_end_of_one_that_lives_can_be_given_up() -> None:
    async with launch_reference() as runner:
        with anyio.move_on_after(0.1):
            await runner.death()
        await runner.ready()
        assert runner.is_up


async def test_a_stop_from_outside_tells_of_the_end_that_leaving_the_block_has_brought() -> None:
    ends: list[ChildDied] = []

    async def stop(runner: Runner) -> None:
        ends.append(await runner.stop())

    async with anyio.create_task_group() as outside:
        async with launch_reference("layers=0,step_ms=5") as runner:
            await runner.ready()
            async with runner.client.generate("hello", shift=True) as stream:
                await anext(stream)
                outside.start_soon(stop, runner)
                await anyio.wait_all_tasks_blocked()
    assert [end.cause for end in ends] == ["stopped"]


@asyncio_only
async def test_a_kill_by_others_during_a_stop_is_told_as_one() -> None:
    async with launch_reference("layers=0,step_ms=5") as runner:
        await runner.ready()
        lines = runner.events()
        async with runner.client.generate("hello", shift=True) as stream:
            await anext(stream)
            async with anyio.create_task_group() as tasks:

                async def kill_when_it_drains() -> None:
                    while runner.status is None or runner.status.state == "ready":
                        await anext(lines)
                    os.kill(runner.pid, signal.SIGKILL)

                tasks.start_soon(kill_when_it_drains)
                end = await runner.stop()
    assert end.cause == "killed"


async def test_a_child_whose_connection_was_given_up_amid_a_request_is_started_again() -> None:
    async with launch_reference(restart=QUICK) as runner:
        await runner.ready()
        events, pid = runner.events(), runner.pid
        os.kill(pid, signal.SIGSTOP)  # it reads nothing, so the request stays half written
        with anyio.move_on_after(0.2):
            await runner.client.complete("word " * 1_000_000)
        os.kill(pid, signal.SIGCONT)
        told = [await anext(events)]
        while not isinstance(told[-1], Restarted):
            told.append(await anext(events))
        await runner.ready()
    assert [event.death.cause for event in told if isinstance(event, Died)] == ["cut_off"]
