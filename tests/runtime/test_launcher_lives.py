"""What becomes of a launched runner: its events, its deaths, its restarts, and its stop."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import pytest

from runnerd.client import ConnectionLost, RequestFailed
from runnerd.launcher import (
    ChildDied,
    CrashLoop,
    Died,
    Event,
    EventStream,
    LoadProgress,
    Recovered,
    Restart,
    Restarted,
    Runner,
    RunnerStalled,
    Stalled,
    StartFailed,
    StateChanged,
    launch,
)
from tests.processes import Family

pytestmark = pytest.mark.anyio

# Where the event loop makes no difference, and a process takes its time to start.
asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])
E = TypeVar("E", bound=Event)
PATIENCE_S = 20.0
STALL_S = 3.0  # a process takes up to two to start where the machine is busy
QUICK = Restart(max_restarts=2, first_delay_s=0.01)


def launch_reference(
    model: str = "layers=0",
    *,
    options: Sequence[str] = (),
    restart: Restart | None = None,
    stall_timeout_s: float = 60.0,
    on_stall: Literal["tell", "kill"] = "tell",
) -> AbstractAsyncContextManager[Runner]:
    return launch(
        model,
        slots=2,
        options=["--engine=reference", *options],
        restart=restart,
        stall_timeout_s=stall_timeout_s,
        on_stall=on_stall,
    )


async def the_next(events: EventStream, kind: type[E]) -> E:
    with anyio.fail_after(PATIENCE_S):
        async for event in events:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} before the end")


# --- what it is doing -----------------------------------------------------------------------


async def test_every_listener_is_told_of_the_load() -> None:
    async with launch_reference("layers=0,load_ms=300") as runner:
        listeners = [runner.events(), runner.events()]
        await runner.ready()
        assert runner.status is not None
        assert runner.status.state == "ready"
    for listener in listeners:
        told = [event async for event in listener]
        assert StateChanged("ready") in told
        progress = [event for event in told if isinstance(event, LoadProgress)]
        assert {each.phase for each in progress} >= {"weights", "context"}


@asyncio_only
async def test_many_runners_live_side_by_side() -> None:
    async with launch_reference() as one, launch_reference() as two, launch_reference() as three:
        assert len({one.pid, two.pid, three.pid}) == 3
        os.kill(two.pid, signal.SIGKILL)
        with pytest.raises(ChildDied):
            await _until_dead(two)
        for runner in (one, three):
            await runner.ready()
            completion = await runner.client.complete("hello", max_tokens=3)
            assert completion.finished.n_generated == 3


async def _until_dead(runner: Runner) -> None:
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                await runner.client.complete("hello", max_tokens=1)
            except ConnectionLost:
                await runner.ready()


# --- deaths ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["open", "weights", "context", "warm-up"])
@asyncio_only
async def test_a_kill_in_any_phase_of_the_load_is_told_with_the_phase(phase: str) -> None:
    async with launch_reference("layers=0,load_ms=1600") as runner:
        with pytest.raises(ChildDied, match=rf"SIGKILL.*loaded the model \({phase}\)") as caught:
            await runner.ready(
                lambda status: (
                    os.kill(runner.pid, signal.SIGKILL) if status.load_phase == phase else None
                )
            )
    assert caught.value.cause == "killed"


async def test_requests_in_flight_are_lost_by_a_death_that_is_named() -> None:
    async with (
        launch_reference("layers=0,step_ms=20") as runner,
        runner.client.generate("hello", shift=True) as stream,
    ):
        await anext(stream)
        os.kill(runner.pid, signal.SIGABRT)
        with pytest.raises(ConnectionLost) as caught:
            async for _ in stream:
                pass
        assert isinstance(caught.value.__cause__, ChildDied)
        assert caught.value.__cause__.cause == "aborted"
        with pytest.raises(ConnectionLost) as caught:
            await runner.client.complete("later")
        assert isinstance(caught.value.__cause__, ChildDied)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "model_missing"),
        (b"", "bad_model"),
        (b"GGUF\x03\0\0\0", "bad_model"),
        (b"#!", "bad_model"),
    ],
)
@pytest.mark.llama
@asyncio_only
async def test_a_file_that_is_no_model_is_told_by_its_cause(
    content: bytes | None, cause: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ChildDied) as caught:
        async with launch(str(path), restart=QUICK) as runner:
            await runner.ready()
    assert caught.value.cause == cause
    assert "model.gguf" in str(caught.value)
    assert not isinstance(caught.value, CrashLoop)


@asyncio_only
async def test_a_process_that_dies_while_others_hold_its_socket_is_told_dead(
    tmp_path: Path,
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nsleep 60 &\nexec "$RUNNERD_PYTHON" "$@"\n')
    python.chmod(0o755)
    env = {"RUNNERD_PYTHON": sys.executable}
    async with launch(
        "layers=0", options=["--engine=reference"], python=str(python), env=env
    ) as runner:
        await runner.ready()
        family = Family(runner.pid)
        assert len(family.pids) == 3  # the daemon, its log relay, and the sleeper
        os.kill(runner.pid, signal.SIGKILL)
        with anyio.fail_after(PATIENCE_S), pytest.raises(ConnectionLost) as caught:
            while True:
                await runner.client.status()
        assert isinstance(caught.value.__cause__, ChildDied)
    assert family.has_ended()


# --- restarts -------------------------------------------------------------------------------


async def test_one_that_was_killed_is_started_again_and_has_a_new_client() -> None:
    async with launch_reference(restart=QUICK) as runner:
        events = runner.events()
        await runner.ready()
        client, pid = runner.client, runner.pid
        os.kill(pid, signal.SIGKILL)
        died = await the_next(events, Died)
        assert (died.death.pid, died.death.cause) == (pid, "killed")
        assert died.restarts_in_s == QUICK.first_delay_s
        restarted = await the_next(events, Restarted)
        await runner.ready()
        assert (runner.pid, runner.n_restarts) == (restarted.pid, 1)
        assert runner.pid != pid
        with pytest.raises(ConnectionLost):
            await client.complete("hello")
        completion = await runner.client.complete("hello", max_tokens=3)
        assert completion.finished.n_generated == 3


@asyncio_only
async def test_one_that_dies_again_and_again_is_given_up_with_its_last_cause() -> None:
    async with launch_reference("layers=0,broken_at=1", restart=QUICK) as runner:
        events = runner.events()
        with pytest.raises(CrashLoop, match=r"restarted 2 times.*decode 1 is to break") as caught:
            while True:
                try:
                    await runner.ready()
                    await runner.client.complete("hello")
                except (RequestFailed, ConnectionLost):
                    await the_next(events, Died)
    assert (caught.value.cause, caught.value.returncode) == ("internal", 70)
    assert runner.n_restarts == 2


@pytest.mark.parametrize(
    ("model", "options", "cause"),
    [
        ("fail_load=1", (), "bad_model"),
        ("bogus=1", (), "config"),
        ("", ("--bogus",), "usage"),
    ],
)
@asyncio_only
async def test_what_a_new_start_would_meet_again_is_not_started_again(
    model: str, options: tuple[str, ...], cause: str
) -> None:
    with pytest.raises(ChildDied) as caught:
        async with launch_reference(model, options=options, restart=QUICK) as runner:
            await runner.ready()
    assert caught.value.cause == cause
    assert not isinstance(caught.value, CrashLoop)


@asyncio_only
async def test_an_interpreter_that_is_gone_at_a_restart_ends_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    async with launch(
        "layers=0", options=["--engine=reference"], python=str(python), env=env, restart=QUICK
    ) as runner:
        await runner.ready()
        python.unlink()
        os.kill(runner.pid, signal.SIGKILL)
        await the_next(runner.events(), Died)
        with anyio.fail_after(PATIENCE_S), pytest.raises(StartFailed, match="No such file"):
            await runner.ready()


# --- the stop -------------------------------------------------------------------------------


async def test_a_stop_lets_what_runs_finish() -> None:
    async with launch_reference("layers=0,step_ms=10", restart=QUICK) as runner:
        await runner.ready()
        async with runner.client.generate("hello", max_tokens=30) as stream:
            await anext(stream)
            async with anyio.create_task_group() as tasks:
                ends: list[ChildDied] = []
                tasks.start_soon(_stop, runner, 10.0, ends)
                completion = await stream.completion()
        assert completion.finished.reason == "length"
        assert [end.cause for end in ends] == ["stopped"]
        assert runner.returncode == 0
        assert runner.n_restarts == 0


async def _stop(runner: Runner, drain_s: float, ends: list[ChildDied]) -> None:
    ends.append(await runner.stop(drain_s))


@asyncio_only
async def test_what_has_not_finished_in_time_is_ended_by_a_stop() -> None:
    async with launch_reference("layers=0,step_ms=10") as runner:
        await runner.ready()
        async with runner.client.generate("hello", shift=True) as stream:
            await anext(stream)
            with anyio.fail_after(5.0):
                end = await runner.stop(0.2)
    assert end.cause == "stopped"
    assert end.sent == signal.SIGTERM


@asyncio_only
async def test_a_stop_while_a_restart_is_awaited_ends_at_once() -> None:
    async with launch_reference(restart=Restart(first_delay_s=60.0, max_delay_s=60.0)) as runner:
        await runner.ready()
        events = runner.events()
        os.kill(runner.pid, signal.SIGKILL)
        await the_next(events, Died)
        with anyio.fail_after(5.0):
            end = await runner.stop()
        assert end.cause == "killed"
        with pytest.raises(ChildDied) as caught:
            await runner.ready()
        assert not isinstance(caught.value, CrashLoop)


# --- stalls ---------------------------------------------------------------------------------


async def test_a_child_that_is_stopped_is_told_stalled_and_then_recovered() -> None:
    async with launch_reference(stall_timeout_s=STALL_S) as runner:
        await runner.ready()
        events = runner.events()
        os.kill(runner.pid, signal.SIGSTOP)
        stalled = await the_next(events, Stalled)
        assert stalled.still_s >= 0.9 * STALL_S
        assert runner.is_stalled
        os.kill(runner.pid, signal.SIGCONT)
        await the_next(events, Recovered)
        assert not runner.is_stalled
        assert (await runner.ready()).state == "ready"


@asyncio_only
async def test_a_slow_load_that_moves_goes_on_beyond_the_time_out() -> None:
    async with launch_reference("layers=0,load_ms=5600", stall_timeout_s=STALL_S) as runner:
        assert (await runner.ready()).state == "ready"


@asyncio_only
async def test_a_load_that_stands_still_is_an_error_and_goes_on_when_it_moves() -> None:
    async with launch_reference("layers=0,load_ms=1600", stall_timeout_s=STALL_S) as runner:
        with pytest.raises(RunnerStalled, match="weights"):
            await runner.ready(
                lambda status: (
                    os.kill(runner.pid, signal.SIGSTOP) if status.load_phase == "weights" else None
                )
            )
        events = runner.events()
        os.kill(runner.pid, signal.SIGCONT)
        await the_next(events, Recovered)
        await runner.ready()


@asyncio_only
async def test_a_stalled_child_is_killed_and_replaced_where_that_is_wanted() -> None:
    quick = launch_reference(restart=QUICK, stall_timeout_s=STALL_S, on_stall="kill")
    async with quick as runner:
        await runner.ready()
        events, pid = runner.events(), runner.pid
        os.kill(pid, signal.SIGSTOP)
        died = await the_next(events, Died)
        assert (died.death.cause, died.death.pid) == ("stalled", pid)
        await runner.ready()
        assert runner.pid != pid
