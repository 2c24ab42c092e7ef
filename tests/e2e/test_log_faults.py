"""A log that cannot be written costs lines, and no client anything."""

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import anyio
import pytest

from runnerd.client import connect
from tests.daemon_process import RUNNERD, DaemonProcess, start_daemon_process
from tests.full_pipe import full_pipe
from tests.hung_disk import HungDisk
from tests.probe import probed
from tests.service_manager import hearing

pytestmark = pytest.mark.anyio


@contextmanager
def full_disk() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@contextmanager
def reader_asleep() -> Iterator[int]:
    reader, writer = full_pipe()
    yield writer
    os.close(writer)
    os.close(reader)


@contextmanager
def reader_gone() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("stderr", [full_disk, reader_asleep, reader_gone])
async def test_a_daemon_whose_log_takes_nothing_serves_and_ends_in_good_order(
    stderr: Callable[[], AbstractContextManager[int]], tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    options = ("--engine", "reference", "--socket", str(path), "--log-level", "debug")
    command = [*RUNNERD, "serve", "layers=0", *options]
    with stderr() as fd, hearing(str(tmp_path / "notify")) as manager:
        env = os.environ | {"NOTIFY_SOCKET": manager.address}
        process = subprocess.Popen(command, stderr=fd, env=env)
        daemon = DaemonProcess(process, path, Path(os.devnull))
        try:
            await manager.until("READY=1")
            async with probed(daemon), connect(path) as client:
                with anyio.fail_after(10):
                    for _ in range(20):
                        await client.complete("x", max_tokens=3)
            daemon.signal(signal.SIGTERM)
            assert await daemon.exit_code() == 0
        finally:
            process.kill()
            process.wait()


async def test_a_disk_that_is_full_for_a_while_costs_lines_and_is_told_how_many() -> None:
    async with (
        start_daemon_process("layers=0", "--log-format", "json") as daemon,
        connect(daemon.path) as client,
    ):
        await client.complete("x", max_tokens=1)
        n_bytes, pid = daemon.log_path.stat().st_size, daemon.process.pid
        no_limit = resource.prlimit(pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))
        for _ in range(10):
            await client.complete("x", max_tokens=1)
        assert daemon.log_path.stat().st_size == n_bytes
        resource.prlimit(pid, resource.RLIMIT_FSIZE, no_limit)
        await client.complete("x", max_tokens=1)
        last = json.loads(daemon.log.splitlines()[-1])
        assert (last["event"], last["dropped"]) == ("request.finished", 10)


async def test_a_disk_that_hangs_delays_no_stream_and_keeps_the_lines(tmp_path: Path) -> None:
    disk = HungDisk.made_in(tmp_path)
    options = ("step_ms=5", "--log-format", "json", "--log-level", "debug")
    async with (
        start_daemon_process(*options, within=disk.within) as daemon,
        connect(daemon.path) as client,
    ):
        await client.complete("x", max_tokens=1)
        n_lines = len(daemon.log.splitlines())
        disk.hang()
        native_stderr = os.open(f"/proc/{daemon.process.pid}/fd/2", os.O_WRONLY)
        os.write(native_stderr, b"llama: error: 7\n")
        n_asked, longest_s, told_at = 0, 0.0, time.monotonic()
        async with client.generate("x", shift=True, max_tokens=100) as stream:
            async for _ in stream:  # a delta may have two tokens
                n_asked += 1
                longest_s = max(longest_s, time.monotonic() - told_at)
                told_at = time.monotonic()
                await client.status()  # logged, at this level
        for _ in range(4):  # more than a pipe holds: nobody waits for the relay either
            os.write(native_stderr, b"llama: error: 8\n" * 4096)
        os.close(native_stderr)
        assert longest_s < 0.6
        assert len(daemon.log.splitlines()) == n_lines
        disk.go_on()
        # The last status is asked for when the generation may have ended, and been logged.
        await daemon.until(
            lambda: (
                daemon.log.count('"kind":"generate"') >= 2
                and daemon.log.count('"kind":"get_status"') >= n_asked
                and "error: 7" in daemon.log
            )
        )
        lines = [json.loads(line) for line in daemon.log.splitlines()[n_lines:]]
        assert n_asked > 50
        assert sum(line.get("kind") == "get_status" for line in lines) == n_asked
        assert not any("dropped" in line for line in lines)


async def test_a_disk_that_hangs_keeps_no_daemon_from_its_end(tmp_path: Path) -> None:
    disk = HungDisk.made_in(tmp_path)
    for n_signals, drain, exit_code in ((1, "0.1", 0), (2, "60", 70)):
        async with start_daemon_process(
            "step_ms=5", "--drain", drain, within=disk.within
        ) as daemon:
            async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
                await anext(stream)
                disk.hang()
                for _ in range(n_signals):
                    daemon.signal(signal.SIGTERM)
                    await daemon.until(lambda: not daemon.path.exists())
                assert await daemon.exit_code(5) == exit_code
        disk.go_on()
