"""Native lines in the log: llama.cpp writes to descriptor 2, a relay process reads it.

llama.cpp can instead call back into Python for each line, on threads of its own and during
the interpreter's exit; both have deadlocks and crashes in store, and the line before an abort
would be lost. A pipe has neither fault. The relay is a fork of the daemon from before its
threads and libraries, so it costs little memory, and it sees the end of the pipe however the
daemon ends.
"""

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import structlog

from runnerd.line_writer import is_writable
from runnerd.log import EventLogger
from runnerd.log_output import LogOutput
from runnerd.native_relay import Relay

STDERR = 2
ANSWER_TIMEOUT_S = 1.0
STOP_TIMEOUT_S = 1.0
LINGER_S = 10.0  # of the relay, for a slow disk: nobody else may be left to tell of an abort
ANSWER_BYTES = 1 << 18  # 50 lines of 500 characters, whatever the characters

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _RelayProcess:
    pid: int
    mark: bytes
    answers: socket.socket
    real_stderr: int


class NativeLogRelay:
    """Descriptor 2 as a source of log lines, from `start` to `stop`."""

    def __init__(self, process: _RelayProcess | None) -> None:
        self._process = process
        self._n_questions = 0

    @classmethod
    def start(cls, output: LogOutput) -> "NativeLogRelay":
        """Fork the relay and put its pipe in the place of descriptor 2.

        To be called from the main thread, before there are others and before native libraries
        are loaded. Where it cannot be done, native lines go on to stderr as they are.
        """
        try:
            return cls(_start_process(output))
        except OSError as err:
            log.warning("native_log.degraded", reason=str(err))
            return cls(None)

    def last_lines(self) -> list[str]:
        """Return the last lines that were written to descriptor 2: 50, cut to 500 characters.

        Everything written before this call is counted in. Waits for the relay, at most a second
        (so not in an event loop); without an answer there are none. One call at a time.
        """
        process = self._process  # `stop` in another thread takes it away
        if process is None:
            return []
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        self._n_questions += 1
        question = str(self._n_questions)
        if not _write_mark(process.mark, question, deadline):
            return []
        while True:
            process.answers.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                answer = process.answers.recv(ANSWER_BYTES)
            except TimeoutError:
                return []
            if not answer:  # the relay has died
                return []
            asked, *lines = answer.decode().split("\n")
            if asked == question:  # else it is the late answer to an earlier question
                return lines

    def stop(self) -> None:
        """Give descriptor 2 back and wait until the relay has logged all lines and ended."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if sys.stderr is not None:
            sys.stderr.flush()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        _write_mark(process.mark, "stop", deadline)
        os.dup2(process.real_stderr, STDERR)
        os.close(process.real_stderr)
        with suppress(ChildProcessError, ProcessLookupError):  # somebody has reaped it for us
            _reap(process, deadline)
        process.answers.close()


def _start_process(output: LogOutput) -> _RelayProcess:
    real_stderr = fcntl.fcntl(STDERR, fcntl.F_DUPFD_CLOEXEC, 3)
    lines_fd, pipe_fd = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mark = b"\0runnerd " + os.urandom(8).hex().encode() + b" "
    # What a terminal or a supervisor sends to the whole process group is meant for the daemon,
    # and the relay has to outlive the daemon's answer to it: in the child, all stay blocked.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            keep = {STDERR, lines_fd, output.writer.fd, theirs.fileno()}
            relay = Relay(output, EventLogger.threshold, mark, theirs)
            _run_relay(relay, output, lines_fd, keep)
        os.dup2(pipe_fd, STDERR)
    except OSError:
        os.close(real_stderr)
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(lines_fd)
        os.close(pipe_fd)
        theirs.close()
    return _RelayProcess(pid, mark, ours, real_stderr)


def _run_relay(relay: Relay, output: LogOutput, lines_fd: int, keep: set[int]) -> NoReturn:
    """Be the child: never return into the daemon's code, nor run its exit handlers."""
    status = 1
    try:
        gc.freeze()  # the daemon's objects are not ours to finalize
        # Kept: STDERR, still the real one here, for a traceback of the relay itself.
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd not in keep:
                with suppress(OSError):  # the one that listed the folder is closed already
                    os.close(fd)
        with suppress(OSError):  # a name for `ps`, no more
            Path("/proc/self/comm").write_text("runnerd-log")
        relay.serve(lines_fd)
        output.linger(LINGER_S)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _write_mark(mark: bytes, word: str, deadline: float) -> bool:
    """Write a word for the relay into the stream; False if there is no room until then."""
    if not is_writable(STDERR, max(0.0, deadline - time.monotonic()) * 1000):
        return False
    try:
        # The newline before it ends a line that somebody has begun.
        os.write(STDERR, b"\n" + mark + word.encode() + b"\n")
    except BrokenPipeError:  # the relay has died
        return False
    return True


def _reap(process: _RelayProcess, deadline: float) -> None:
    # The relay alone holds the other end of `answers`, which hangs up when it ends. A pidfd would
    # tell the same, but old kernels and some sandboxes refuse it.
    poll = select.poll()
    poll.register(process.answers, 0)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        # A process that the daemon started still holds descriptor 2.
        os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
