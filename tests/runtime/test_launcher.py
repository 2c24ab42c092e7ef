import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import psutil
import pytest

from runnerd import child_process
from runnerd.client import RequestFailed
from runnerd.launcher import ChildDied, Runner, StartFailed, launch
from runnerd_protocol.messages import Status
from tests.processes import Family

pytestmark = pytest.mark.anyio

# Where the event loop makes no difference, and a process takes its time to start.
asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def launch_reference(
    model: str = "layers=0", *, slots: int = 2, options: Sequence[str] = ()
) -> AbstractAsyncContextManager[Runner]:
    return launch(model, slots=slots, options=["--engine=reference", *options])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "END_S", 0.2)
    monkeypatch.setattr(child_process, "TERM_S", 0.2)


async def test_a_child_answers_over_the_inherited_socket() -> None:
    async with launch_reference() as child:
        completion = await child.client.complete("hello", max_tokens=5)
    assert completion.finished.n_generated == 5
    assert child.returncode == 0


@asyncio_only
async def test_slots_and_context_are_passed_on() -> None:
    async with launch("", slots=3, ctx=100, options=["--engine=reference"]) as child:
        status = await child.ready()
    assert (status.n_slots, status.n_ctx) == (3, 100)


async def test_the_load_is_told_step_by_step() -> None:
    told: list[Status] = []
    async with launch_reference("layers=0,load_ms=300") as child:
        await child.ready(told.append)
    fractions = [status.load_fraction for status in told if status.state == "loading"]
    assert fractions
    assert told[-1].state == "ready"


async def test_a_failed_load_is_named() -> None:
    async with launch_reference("fail_load=1,load_ms=200") as child:
        with pytest.raises(ChildDied, match=r"model cannot be used.*fail_load=1") as caught:
            await child.ready()
    assert caught.value.returncode == 65


@asyncio_only
async def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ChildDied, match="No such option: --bogus") as caught:
        async with launch_reference(options=["--bogus"]):
            pytest.fail("there is no such option")
    assert caught.value.returncode == 64


@asyncio_only
async def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(ChildDied, match="slots 0 is not between 1 and 256") as caught:
        async with launch_reference(slots=0):
            pytest.fail("there is no daemon without slots")
    assert caught.value.returncode == 78


async def test_a_missing_executable_is_named() -> None:
    with pytest.raises(StartFailed, match="/no/such/python: No such file"):
        async with launch("", python="/no/such/python"):
            pytest.fail("there is no such executable")


async def test_a_killed_child_is_told_from_one_that_ended() -> None:
    async def read_until_killed() -> None:
        async with (
            launch_reference("layers=0,step_ms=20") as child,
            child.client.generate("hello", shift=True) as stream,
        ):
            async for _ in stream:
                os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(ChildDied, match="killed by SIGKILL"):
        await read_until_killed()


@asyncio_only
async def test_a_broken_engine_is_the_cause_of_the_childs_death() -> None:
    async with launch_reference("layers=0,broken_at=2") as child:
        await child.ready()
        with pytest.raises(RequestFailed, match="engine_failed"):
            await child.client.complete("hello", max_tokens=5)
        death = await child.death()
    assert death.returncode == 70
    assert "decode 2 is to break" in str(death)


async def test_lines_of_stderr_are_passed_on() -> None:
    lines: list[str] = []
    async with launch("", options=["--engine=reference"], on_line=lines.append) as child:
        await child.ready()
    assert any("daemon.ready" in line for line in lines)
    assert "daemon.stopped" in lines[-1]


async def test_leaving_the_block_in_the_middle_of_a_request_ends_all_processes() -> None:
    async with (
        launch_reference("layers=0,step_ms=10") as child,
        child.client.generate("hello", shift=True) as stream,
    ):
        await anext(stream)
        family = Family(child.pid)
    assert len(family.pids) == 2  # the daemon and its log relay
    assert family.has_ended()
    assert child.returncode == 0


@asyncio_only
async def test_leaving_the_block_in_the_middle_of_the_load_ends_all_processes() -> None:
    async with launch_reference("load_ms=8000") as child:
        family = Family(child.pid)
    assert family.has_ended()
    assert child.returncode == 0


async def test_a_cancelled_block_leaves_no_process_behind() -> None:
    with anyio.CancelScope() as scope:
        async with launch_reference() as child:
            family = Family(child.pid)
            scope.cancel()
            await anyio.sleep_forever()
    assert family.has_ended()
    assert scope.cancelled_caught


@pytest.mark.usefixtures("impatient")
async def test_a_child_in_a_step_that_never_ends_is_terminated() -> None:
    async with launch_reference("layers=0,hang_at=2") as child:
        family = Family(child.pid)
        with anyio.move_on_after(0.5):
            await child.client.complete("hello")
    assert family.has_ended()


@pytest.mark.usefixtures("impatient")
async def test_a_child_that_does_not_react_is_killed() -> None:
    async with launch_reference() as child:
        family = Family(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        death = await child.death()
    assert child.returncode == death.returncode == -signal.SIGKILL
    assert death.sent == signal.SIGKILL
    assert "did not end by itself and was sent SIGKILL" in str(death)
    assert family.has_ended()


@asyncio_only
async def test_a_child_for_which_there_is_no_socket_is_a_failed_start() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(StartFailed, match="Too many open files"):
            async with launch_reference():
                pytest.fail("there is no room for a socket")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_what_a_block_raises_comes_out_as_it_is() -> None:
    with pytest.raises(ValueError, match="the caller's own"):
        async with launch_reference():
            raise ValueError("the caller's own")


@asyncio_only
async def test_a_module_in_the_working_folder_stays_out_of_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('not the queue you wanted')")
    monkeypatch.chdir(tmp_path)
    async with launch_reference() as child:
        assert (await child.ready()).state == "ready"


PARENT = """
import anyio
from runnerd.launcher import launch

async def main():
    async with launch("layers=0,step_ms=10", options=["--engine=reference"]) as child:
        async with child.client.generate("hello", shift=True) as stream:
            await anext(stream)
            print(child.pid, flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = Family(int(parent.stdout.readline()))
        parent.kill()
        assert child.has_ended()


@asyncio_only
async def test_a_child_gets_little_of_our_environment_and_what_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "SOME_SECRET"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LC_TIME", "C")
    options = ["--engine=reference"]
    async with launch("layers=0", options=options, env={"CUDA_VISIBLE_DEVICES": ""}) as child:
        await child.ready()
        given = set(psutil.Process(child.pid).environ())
    assert {"PATH", "LC_TIME", "CUDA_VISIBLE_DEVICES"} <= given
    assert not given & {"NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "SOME_SECRET"}


@asyncio_only
async def test_a_full_pipe_of_stderr_holds_a_child_up_and_no_longer(tmp_path: Path) -> None:
    python = tmp_path / "python"
    flood = "yes runnerd | head -n 100000 >&2"  # ten times what a pipe holds
    python.write_text(f'#!/bin/sh\n{flood}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    lines: list[str] = []

    def keep(line: str) -> None:
        if not lines:
            time.sleep(0.3)  # the whole loop stands still, and the pipe fills
        lines.append(line)

    options = ["--engine=reference"]
    async with launch("layers=0", options=options, python=str(python), on_line=keep) as child:
        await child.ready()
    assert lines.count("runnerd") == 100_000
    assert "daemon.stopped" in lines[-1]
