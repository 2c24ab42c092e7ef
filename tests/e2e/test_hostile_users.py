"""Users who should not be there, against a daemon in a process of its own."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import UNIXSocketStream

from runnerd.client import ConnectionLost, attach, connect
from runnerd.peers import OVERFLOW_ID
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.e2e.asking import longest_gap_s
from tests.others import (
    IN_NAMESPACE,
    connected_as,
    let_all_connect,
    needs_root,
    skip_without_namespaces,
)
from tests.probe import probed

pytestmark = [pytest.mark.anyio, needs_root]

STRANGER = 61_001


@contextmanager
def flooded(path: Path, n_children: int = 3) -> Iterator[None]:
    """Have processes of a stranger connect as fast as they can; each waits for its answer."""
    children = []
    for _ in range(n_children):
        child = os.fork()
        if not child:
            try:
                os.setgroups([])
                os.setresgid(STRANGER, STRANGER, STRANGER)
                os.setresuid(STRANGER, STRANGER, STRANGER)
                while True:
                    with socket.socket(socket.AF_UNIX) as sock:
                        sock.connect(str(path))
                        sock.recv(2**16)
            finally:
                os._exit(1)
        children.append(child)
    try:
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


async def is_let_in(daemon: DaemonProcess, uid: int, gid: int) -> bool:
    stream = await UNIXSocketStream.from_socket(connected_as(daemon.path, uid, gid))
    try:
        async with attach(stream) as client:
            await client.status()
            return True
    except ConnectionLost as err:
        assert str(err).startswith("not_allowed")  # noqa: PT017  # else it was let in
        return False


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_flood_of_strangers_slows_no_stream_and_keeps_nobody_out(backend: str) -> None:
    async with start_daemon_process("layers=0", "--async-backend", backend) as daemon:
        let_all_connect(daemon.path)
        async with probed(daemon):
            slowest_s = 0.0
            with flooded(daemon.path):
                async with (
                    connect(daemon.path) as client,
                    client.generate("x", shift=True, max_tokens=700) as stream,
                ):
                    assert await longest_gap_s(stream) < 0.5
                for _ in range(10):
                    asked_at = anyio.current_time()
                    async with connect(daemon.path) as client:
                        await client.status()
                    slowest_s = max(slowest_s, anyio.current_time() - asked_at)
            assert slowest_s < 1.0
        assert daemon.log.count("client.not_allowed") == 1


async def test_a_daemon_in_a_namespace_of_few_takes_all_strangers_for_none() -> None:
    skip_without_namespaces()
    async with start_daemon_process("layers=0", within=IN_NAMESPACE) as daemon:
        os.chown(daemon.path, 0, STRANGER)  # which the daemon sees as the group of all strangers
        let_all_connect(daemon.path, 0o660)
        assert await is_let_in(daemon, 0, 0)
        assert not await is_let_in(daemon, STRANGER, STRANGER)
        os.chown(daemon.path, 0, 0)
        assert await is_let_in(daemon, STRANGER, 0)
        assert f'"uid":{OVERFLOW_ID}' in daemon.log
