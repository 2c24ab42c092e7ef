"""A daemon's process: how it is started, and how it is brought to its end.

It inherits one end of a socketpair, and a descriptor of its parent's process: that one tells of
the parent's end whatever else has inherited our end of the socket, also of a parent that nobody
has reaped, and unlike a process id it never comes to mean another process.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import Process

from runnerd.death import Death, StartFailed, Told, cause_of, describe_exit
from runnerd.last_words import LastWords
from runnerd.oom_kills import OomKills
from runnerd.stall_clock import is_loading
from runnerd_protocol.messages import Memory, Status

END_S = 5.0  # for a child to end by itself after its socket has closed
TERM_S = 2.0  # and after SIGTERM; then it is killed
STDERR_S = 1.0  # for the rest of stderr to arrive after the end

# What a child gets of our environment: what Python, the C library, the loader and the libraries
# of devices read. Not the parent's secrets, nor what systemd has said to the parent alone
# (NOTIFY_SOCKET, LISTEN_*, WATCHDOG_*).
KEPT_NAMES = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "LANG", "LANGUAGE"}
KEPT_PREFIXES = (
    *("LC_", "PYTHON", "LD_", "XDG_", "OMP_", "GOMP_", "OPENBLAS_", "GGML_", "LLAMA_"),
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "GPU_", "VK_", "ONEAPI_", "SYCL_", "ZE_"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """What to start: `options` and `model` of `runnerd serve`; `env` is added to the rest."""

    model: str
    options: Sequence[str] = ()
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)
    on_line: Callable[[str], None] | None = None


def environment(parents: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return a child's environment: little of its parent's, and what is added."""
    kept = {
        name: value
        for name, value in parents.items()
        if name in KEPT_NAMES or name.startswith(KEPT_PREFIXES)
    }
    return kept | dict(added)


class ChildProcess:
    """A process that was started, with what is known about its end."""

    def __init__(self, process: Process, on_line: Callable[[str], None] | None) -> None:
        self._phase = ""
        self._memory: Memory | None = None
        self._process = process
        self._last_words = LastWords(on_line)
        self._oom_kills = OomKills(process.pid)
        self._sent: signal.Signals | None = None
        self._told: Told = ""

    @classmethod
    async def start(cls, command: Command) -> tuple["ChildProcess", socket.socket]:
        """Start one; return our end of its socket, too. A cancellation waits until it is there.

        Raises:
            StartFailed: there is no such `python`, or the system has no room for a process.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as err:
            raise StartFailed(f"cannot make a socket for the child: {err.strerror}") from err
        try:
            with anyio.CancelScope(shield=True), theirs:
                # Of theirs no copy may stay with us: it would keep the connection open.
                process = await _open(command, theirs)
        except (OSError, ValueError) as err:  # a ValueError is of a text with a null in it
            ours.close()
            why = err.strerror if isinstance(err, OSError) else str(err)
            raise StartFailed(f"cannot start {command.python}: {why}") from err
        return cls(process, command.on_line), ours

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the number of the signal; None while it runs."""
        return self._process.returncode

    async def read_stderr(self) -> None:
        """Read stderr to its end."""
        assert self._process.stderr is not None
        await self._last_words.read(self._process.stderr)

    async def wait(self) -> None:
        """Wait for the end."""
        await self._process.wait()

    def note_status(self, status: Status) -> None:
        """Keep what of a status will matter at the end."""
        if is_loading(status):
            self._phase = status.load_phase
        elif status.state == "ready":
            self._phase = ""
        self._memory = status.memory or self._memory

    def note_group(self) -> None:
        """Count from now on, in the group that it is in now, what the kernel kills there."""
        self._oom_kills = OomKills(self.pid)

    def kill_stalled(self) -> None:
        """Kill it because nothing moves."""
        self._told = "stall"
        self._send(signal.SIGKILL)

    def note_cut_off(self) -> None:
        """Note that it ends because its connection was given up here."""
        self._told = self._told or "end"

    async def stop(self, drain_s: float) -> None:
        """Tell it to stop; when the time is over it is to end at once, and then is killed."""
        self._told = self._told or "stop"
        self._send(signal.SIGTERM)
        await self._wait_or_send(drain_s, signal.SIGTERM)  # its second one
        await self._wait_or_send(TERM_S, signal.SIGKILL)
        await self._process.wait()

    async def end(self) -> Death:
        """Wait for the end, by force if it takes too long; return why it has ended."""
        await self._wait_or_send(END_S, signal.SIGTERM)
        await self._wait_or_send(TERM_S, signal.SIGKILL)
        return await self.death()

    async def close(self) -> None:
        """Let go of a process that has ended, and end whatever is left of its group."""
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            await self._process.aclose()

    async def _wait_or_send(self, seconds: float, then: signal.Signals) -> None:
        with anyio.move_on_after(seconds):
            await self._process.wait()
        self._send(then)

    def _send(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):  # it ended just now
                self._process.send_signal(number)
                self._sent = number

    async def death(self) -> Death:
        """Wait for the end and for the last words; return why it has ended."""
        await self._process.wait()
        with anyio.move_on_after(STDERR_S):
            await self._last_words.complete.wait()
        returncode = self._process.returncode
        assert returncode is not None
        words = self._last_words
        said = words.summary()
        told = returncode, self._sent, self._told, self._oom_kills.n_since, said
        cause = cause_of(*told)
        return Death(
            pid=self.pid,
            returncode=returncode,
            cause=cause,
            how=describe_exit(*told),
            summary=(words.assertion() if cause == "aborted" else "") or said,
            last_lines=tuple(words.lines),
            phase=self._phase,
            memory=self._memory,
            sent=self._sent,
        )


async def _open(command: Command, theirs: socket.socket) -> Process:
    parent = _own_pidfd()
    fds = [theirs.fileno(), *parent]
    # -P: modules in the working folder must not take the place of the standard library's.
    start = [command.python, "-P", "-m", "runnerd", "serve", f"--fd={fds[0]}"]
    try:
        return await anyio.open_process(
            [
                *start,
                *(f"--parent-fd={fd}" for fd in parent),
                *command.options,
                "--",
                command.model,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what native libraries print is not the parent's output
            stderr=subprocess.PIPE,
            env=environment(os.environ, command.env),
            pass_fds=fds,
            start_new_session=True,
        )
    finally:
        for fd in parent:
            os.close(fd)


def _own_pidfd() -> list[int]:
    """Return a descriptor of this process; none where old kernels or sandboxes refuse it."""
    try:
        return [os.pidfd_open(os.getpid())]
    except OSError as err:
        if err.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return []
