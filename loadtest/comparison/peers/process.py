"""A peer's process: started in a group of its own, which ends with the block, and its log."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import psutil
from anyio.abc import Process

from loadtest.comparison.exchange import PeerUnavailable, Usage

NO_DEBUGGER = {"GGML_NO_BACKTRACE": "1"}  # which ggml starts when it aborts
TERM_S = 5.0  # to end after SIGTERM; then the group is killed
TAIL_LINES = 12
TAIL_BYTES = 4096


class PeerProcess:
    """A process that runs, and the file that all its output goes to."""

    def __init__(self, command: Sequence[str], process: Process, log: Path) -> None:
        self.command = command
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Its id, which is that of its group."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        return await self._process.wait()

    @property
    def last_words(self) -> str:
        """How it has ended, with the end of its log; "" while it runs."""
        code = self._process.returncode
        if code is None:
            return ""
        return f"{Path(self.command[0]).name} has ended with status {code}: {tail(self._log)}"

    def check_runs(self) -> None:
        """Do nothing while it runs.

        Raises:
            PeerUnavailable: it has ended.
        """
        if self.last_words:
            raise PeerUnavailable(self.last_words)


@asynccontextmanager
async def running(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[PeerProcess]:
    """Run a command for as long as the block lasts; `env` is added to our environment.

    Raises:
        PeerUnavailable: it cannot be started.
    """
    try:
        with log.open("wb") as output:
            process = await anyio.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **NO_DEBUGGER, **(env or {})},
                start_new_session=True,
            )
    except OSError as err:
        raise PeerUnavailable(f"{command[0]} cannot be started: {err}") from err
    try:
        yield PeerProcess(command, process, log)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _end(process: Process) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    with anyio.move_on_after(TERM_S):
        await process.wait()
    _signal_group(process.pid, signal.SIGKILL)  # whoever of the group is left
    await process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])


def usage_of(pids: Iterable[int]) -> Usage:
    """Return what processes and their children have used; those that have ended count nothing."""
    resident_bytes, anonymous_bytes, cpu_s = 0, 0, 0.0
    for process in _families(pids):
        with suppress(psutil.NoSuchProcess), process.oneshot():
            memory, times = process.memory_info(), process.cpu_times()
            resident_bytes += memory.rss
            anonymous_bytes += memory.rss - memory.shared  # the rest is of files
            cpu_s += times.user + times.system
    return Usage(resident_bytes, anonymous_bytes, cpu_s)


def _families(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            found += [parent, *parent.children(recursive=True)]
    return found
