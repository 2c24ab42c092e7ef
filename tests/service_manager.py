"""A stand-in for systemd: it hears what a service says, and passes it sockets."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio

from tests.daemon import PATIENCE_S
from tests.daemon_process import RUNNERD

# What happens between fork and exec of a service: sockets from 3 on, and whose they are.
BECOME = """
import fcntl, os, sys
n_sockets = int(sys.argv[1])
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[2 : 2 + n_sockets]]
for number, fd in enumerate(high, start=3):
    os.dup2(fd, number)
    os.close(fd)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(n_sockets)}
if "WATCHDOG_USEC" in os.environ:
    os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.argv[2 + n_sockets], sys.argv[2 + n_sockets :])
"""


class Hearing:
    """The messages of a service, as they come."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    @property
    def address(self) -> str:
        """What NOTIFY_SOCKET is to be."""
        name = self.socket.getsockname()
        return f"@{name[1:].decode()}" if isinstance(name, bytes) else str(name)

    def so_far(self) -> list[str]:
        """Take what has come."""
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    async def next(self) -> str:
        """Wait for another message."""
        with anyio.fail_after(PATIENCE_S):
            await anyio.wait_readable(self.socket)
        return self.socket.recv(4096).decode()

    async def until(self, part: str) -> list[str]:
        """Take messages, up to the one that has this in it."""
        messages = [await self.next()]
        while part not in messages[-1]:
            messages.append(await self.next())
        return messages


@contextmanager
def hearing(address: str) -> Iterator[Hearing]:
    """Listen at a path, or at an abstract name that begins with @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        sock.setblocking(False)
        yield Hearing(sock)


@contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    """Listen as a socket unit does."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(128)
        yield sock


@contextmanager
def service_process(
    sockets: Sequence[socket.socket],
    notify_address: str,
    log_path: Path,
    *options: str,
    model: str = "layers=0",
    watchdog_s: float = 0.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `runnerd serve` as systemd would; kill it at the end if it still runs."""
    environment = os.environ | {"NOTIFY_SOCKET": notify_address}
    if watchdog_s:
        environment["WATCHDOG_USEC"] = str(round(watchdog_s * 1e6))
    fds = [each.fileno() for each in sockets]
    become = [sys.executable, "-ISc", BECOME, str(len(fds)), *map(str, fds)]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*become, *RUNNERD, "serve", model, "--engine=reference", *options],
            env=environment,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
