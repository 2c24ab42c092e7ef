"""A daemon as a process of its own, started as its operator would."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import psutil
from anyio import to_thread

from runnerd.client import connect

START_S = 60.0
RUNNERD = (sys.executable, "-m", "runnerd")


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A running daemon; what it logs goes to a file."""

    process: subprocess.Popen[bytes]
    path: Path
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def facts(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    @property
    def private_bytes(self) -> int:
        """Memory of its own: what it has mapped from files comes and goes."""
        return int(self.facts.memory_info().rss - self.facts.memory_info().shared)

    @property
    def cpu_s(self) -> float:
        """Processor time that it has taken so far."""
        times = self.facts.cpu_times()
        return float(times.user + times.system)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_code(self, within_s: float = START_S) -> int:
        """Wait until it has ended."""
        return await to_thread.run_sync(self.process.wait, within_s)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something has come true that is seen from outside, as in its log."""
        with anyio.fail_after(START_S):
            while not holds():
                await anyio.sleep(0.01)  # what another process writes sets no event

    async def has_all_slots(self) -> None:
        """Assert that every slot can be had at once, by the clients' own experience."""
        async with connect(self.path) as client:
            n_slots = (await client.status()).n_slots
            n_started = anyio.Semaphore(0)
            all_started = anyio.Event()

            async def hold() -> None:
                async with client.generate("probe", shift=True) as stream:
                    await anext(stream)
                    n_started.release()
                    await all_started.wait()

            with anyio.fail_after(START_S):
                async with anyio.create_task_group() as tasks:
                    for _ in range(n_slots):
                        tasks.start_soon(hold)
                    for _ in range(n_slots):
                        await n_started.acquire()
                    all_started.set()


@asynccontextmanager
async def start_daemon_process(
    model: str = "layers=0",
    *options: str,
    engine: str = "reference",
    waits_until_ready: bool = True,
    inherits: socket.socket | None = None,
    within: Sequence[str] = (),
) -> AsyncIterator[DaemonProcess]:
    """Start a daemon, and wait until it says READY=1; kill it at the end if it still runs.

    `within` is a command that becomes the one that it is given, such as `unshare`.
    """
    with TemporaryDirectory() as folder:
        path, log_path = Path(folder, "socket"), Path(folder, "log")
        where: Sequence[str] = ("--socket", str(path))
        if inherits is not None:
            where = ("--fd", str(inherits.fileno()))
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
            log_path.open("wb") as log,
        ):
            notified.bind(f"{folder}/notify")
            notified.setblocking(False)
            process = subprocess.Popen(
                [*within, *RUNNERD, "serve", model, "--engine", engine, *where, *options],
                env=os.environ | {"NOTIFY_SOCKET": f"{folder}/notify"},
                pass_fds=() if inherits is None else (inherits.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            if inherits is not None:
                inherits.close()
            try:
                daemon = DaemonProcess(process, path, log_path)
                if waits_until_ready:
                    await _ready(daemon, notified)
                yield daemon
            finally:
                process.kill()
                process.wait()


async def _ready(daemon: DaemonProcess, notified: socket.socket) -> None:
    """Wait until a daemon says that it is ready; one that ends before is an error at once."""
    end = os.pidfd_open(daemon.process.pid)

    async def fail_at_end() -> None:
        await anyio.wait_readable(end)
        raise AssertionError(daemon.log)

    try:
        with anyio.fail_after(START_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fail_at_end)
                while b"READY=1" not in await _news(notified):
                    pass
                tasks.cancel_scope.cancel()
    finally:
        os.close(end)


async def _news(notified: socket.socket) -> bytes:
    await anyio.wait_readable(notified)
    return notified.recv(4096)
