"""A load that is told to end does, in whatever phase it is, and leaves nothing."""

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio.abc import UNIXSocketStream

from runnerd.client import Client, attach
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.processes import Family
from tests.statuses import until_status

pytestmark = pytest.mark.anyio

END_S = 10.0  # of a load that looks, on a machine that has other things to do


@asynccontextmanager
async def loading(
    path: Path, model: str, *options: str, engine: str = "reference"
) -> AsyncIterator[tuple[DaemonProcess, Client]]:
    """Start a daemon at a path; we are its first client, over a socket that it inherits."""
    ours, theirs = socket.socketpair()
    started = start_daemon_process(
        model, f"--socket={path}", *options, engine=engine, waits_until_ready=False, inherits=theirs
    )
    async with started as daemon, attach(await UNIXSocketStream.from_socket(ours)) as client:
        yield daemon, client


async def check_it_ends_in(phase: str, daemon: DaemonProcess, client: Client, path: Path) -> None:
    """Assert that a load ends in a phase when it is told to, and leaves nothing."""
    await until_status(client, lambda status: status.load_phase == phase or status.state == "ready")
    assert path.exists()
    family = Family(daemon.process.pid)
    daemon.signal(signal.SIGTERM)
    assert await daemon.exit_code(within_s=END_S) == 0
    assert family.has_ended()
    assert not path.exists()
    assert "daemon.stopped" in daemon.log


@pytest.mark.parametrize("phase", ["open", "weights", "context", "warm-up"])
async def test_a_load_ends_with_0_in_each_phase(phase: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with loading(path, "layers=0,load_ms=4000") as (daemon, client):
        await check_it_ends_in(phase, daemon, client, path)


@pytest.mark.llama
@pytest.mark.parametrize("phase", ["open", "weights", "context", "warm-up"])
async def test_a_load_of_a_real_model_ends_with_0_in_each_phase(phase: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    options = ("--ctx=512", "--threads=1")
    async with loading(path, "smollm2", *options, engine="llama") as (daemon, client):
        await check_it_ends_in(phase, daemon, client, path)
