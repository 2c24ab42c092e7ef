"""A daemon's process whose engine fails, or that gets no more memory: how it ends."""

import os
import resource
import signal
from collections import Counter
from pathlib import Path

import anyio
import pytest

from runnerd.client import ClientError, ConnectionLost, GenerationStream, RequestFailed, connect
from runnerd.launcher import ChildDied, Restart, Restarted, launch
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.e2e.asking import GREEDY, loosely

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
MIB = 2**20

# Read by the daemon's Python at its start. On SIGUSR2 a method of the engine is made to fail.
SITE = """
import os, signal

def strike(number, frame):
    from runnerd.engine.reference import ReferenceEngine
    from runnerd.errors import EngineBroken
    method, error = {fault}

    def fail(*arguments):
        if error is None:
            os.abort()
        raise error

    setattr(ReferenceEngine, method, fail)

signal.signal(signal.SIGUSR2, strike)
"""
STREAM = {"shift": True, "ignore_end": True}


def site_of(folder: Path, fault: str) -> str:
    """Return a folder with the fault, for PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(SITE.format(fault=fault))
    return str(folder)


async def until_the_end(stream: GenerationStream) -> Exception:
    """Return what ends a stream that nothing was to end."""
    try:
        async for _ in stream:
            pass
    except ClientError as err:
        return err
    raise AssertionError("it has ended well")


@pytest.mark.parametrize(
    ("fault", "code", "event"),
    [
        ('"decode", EngineBroken("code -3")', 70, "daemon.engine_failed"),
        ('"apply", MemoryError()', 71, "daemon.crashed"),
    ],
)
async def test_an_engine_that_fails_ends_the_process_after_all_were_told(
    fault: str, code: int, event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", site_of(tmp_path, fault))
    async with start_daemon_process("layers=0,step_ms=5") as daemon, connect(daemon.path) as client:
        async with (
            client.generate("a", **loosely(STREAM)) as first,
            client.generate("b", **loosely(STREAM)) as second,
        ):
            await anext(first)
            await anext(second)
            daemon.signal(signal.SIGUSR2)
            for stream in (first, second):
                failed = await until_the_end(stream)
                assert isinstance(failed, RequestFailed)
                assert failed.failed.code == "engine_failed"
        assert await daemon.exit_code(within_s=5) == code
        assert event in daemon.log
        assert not daemon.path.exists()


async def test_an_engine_that_cannot_be_closed_ends_the_process_with_70(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", site_of(tmp_path, '"close", RuntimeError("stuck")'))
    async with start_daemon_process() as daemon:
        async with connect(daemon.path) as client:
            daemon.signal(signal.SIGUSR2)
            await client.complete("x", max_tokens=3)
        daemon.signal(signal.SIGTERM)
        assert await daemon.exit_code(within_s=5) == 70
        assert "RuntimeError" in daemon.log


async def test_an_abort_beside_8_streams_is_told_to_each_and_the_next_life_serves(
    tmp_path: Path,
) -> None:
    env = {"PYTHONPATH": site_of(tmp_path, '"decode", None')}
    options = ["--engine=reference"]
    restart = Restart(max_restarts=1, first_delay_s=0.01)
    async with launch(
        "layers=0,step_ms=5", slots=8, options=options, env=env, restart=restart
    ) as runner:
        await runner.ready()
        lost: list[Exception] = []

        async def stream(number: int) -> None:
            async with runner.client.generate(f"{number}", **loosely(STREAM)) as stream:
                await anext(stream)
                started.release()
                lost.append(await until_the_end(stream))

        started = anyio.Semaphore(0)
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(stream, number)
                for _ in range(8):
                    await started.acquire()
                events = runner.events()
                os.kill(runner.pid, signal.SIGUSR2)
            async for event in events:
                if isinstance(event, Restarted):
                    break
            await runner.ready()
            assert (await runner.client.complete("x", max_tokens=3)).finished.n_generated == 3
    assert {type(each) for each in lost} == {ConnectionLost}
    causes = [each.__cause__ for each in lost]
    assert [each.cause for each in causes if isinstance(each, ChildDied)] == ["aborted"] * 8


@pytest.mark.parametrize("n_mib", [0, pytest.param(32, marks=pytest.mark.soak)])
async def test_without_memory_each_request_has_its_text_or_an_error_and_never_half_of_it(
    n_mib: int,
) -> None:
    async with start_daemon_process("layers=1", "--ctx=1024") as daemon:
        async with connect(daemon.path) as client:
            wanted = (await client.complete("Once", max_tokens=20, **GREEDY)).text
        _limit_memory(daemon, n_mib * MIB)
        answers: Counter[str] = Counter()

        async def ask(kind: str) -> None:
            try:
                async with connect(daemon.path) as client:
                    if kind == "text":
                        text = (await client.complete("Once", max_tokens=20, **GREEDY)).text
                        answers["right" if text == wanted else "wrong"] += 1
                    elif kind == "tokens":
                        await client.tokenize("x y " * 400_000)
                    else:
                        await client.embed(["hello " * 50] * 50)
            except RequestFailed as err:
                answers[err.failed.code] += 1
            except ConnectionLost:
                answers["lost"] += 1

        with anyio.fail_after(3 * PATIENCE_S):
            for _ in range(3):
                async with anyio.create_task_group() as tasks:
                    for kind in ("text", "tokens", "embed", "text"):
                        tasks.start_soon(ask, kind)
        assert set(answers) <= {"right", "internal", "engine_failed", "overloaded", "lost"}
        if daemon.process.poll() is not None:
            assert daemon.process.returncode in (70, 71), daemon.log
            assert '"level":"error"' in daemon.log
            return
        _limit_memory(daemon, None)
        await daemon.has_all_slots()
        async with connect(daemon.path) as client:
            assert (await client.complete("Once", max_tokens=20, **GREEDY)).text == wanted


def _limit_memory(daemon: DaemonProcess, n_more: int | None) -> None:
    """Let a process have so much address space more than it has; None: any."""
    n_most = resource.RLIM_INFINITY
    if n_more is not None:
        n_most = daemon.facts.memory_info().vms + n_more
    resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (n_most, resource.RLIM_INFINITY))
