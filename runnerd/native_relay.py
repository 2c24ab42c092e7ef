"""The relay process: reads what the daemon writes to descriptor 2 and logs it, line by line.

It ends when the last writer has: so it outlives every way in which the daemon can die, and
loses nothing that the daemon wrote before that. It never stops reading while it waits for
something else, since a full pipe would stop the daemon in the middle of native code.
"""

import os
import re
import select
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from runnerd.log import LEVELS
from runnerd.log_limit import TELL_S, Allowance, tokens_for
from runnerd.log_output import LogOutput

MAX_LINE_BYTES = 8192  # a longer line is logged in pieces: memory stays bounded
READ_BYTES = 65536  # what a pipe holds
# Lines at once and per second: a warning per token must not fill the disk. The library's chat
# is logged only for those who want to read it.
GRAVE_LINES = (20, 8)
CHAT_LINES = (200, 200)
TAIL_LINES = 50
ANSWER_CHARS = 500  # per line of an answer, so that it fits into one packet

WARNING_WORDS = re.compile(r"\bwarn|unable", re.IGNORECASE)
ERROR_WORDS = re.compile(
    r"error|fail|abort|assert|\bexception|fatal|out of memory|terminate called|what\(\):",
    re.IGNORECASE,
)
# What llama.cpp says of a pass that we have stopped, and calls an error: its codes for "aborted".
ABORTED_PASS = re.compile(
    r"graph_compute\w* failed with error 1$|compute status: 1$|failed to (?:de|en)code, ret = 2$"
)


@dataclass(slots=True)
class NativeLine:
    """A line as the tail keeps it."""

    text: str
    level: str
    is_logged: bool = False


class LineSplitter:
    """Cuts a stream of bytes into lines of at most `MAX_LINE_BYTES`, leaving out empty ones."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the lines that are complete or too long to wait for."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        pieces = [
            line[start : start + MAX_LINE_BYTES]
            for line in lines
            for start in range(0, len(line), MAX_LINE_BYTES)
        ]
        while len(self._rest) > MAX_LINE_BYTES:
            pieces.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return pieces


class LevelGuess:
    """Guesses a line's level from its words: llama.cpp's lines on descriptor 2 carry none."""

    def __init__(self) -> None:
        self._in_traceback = False

    def of(self, text: str) -> str:
        """Return the level; a Python traceback is an error down to its last line."""
        if self._in_traceback:
            self._in_traceback = text.startswith((" ", "\t"))
            return "error"
        if ABORTED_PASS.search(text):
            return "debug"
        self._in_traceback = "Traceback (most recent call last)" in text
        if self._in_traceback or ERROR_WORDS.search(text):
            return "error"
        return "warning" if WARNING_WORDS.search(text) else "debug"


class Relay:
    """Logs lines from `threshold` on, at a bounded rate, and remembers the last ones.

    A line that begins with `mark` is a word from the daemon itself: "stop" announces an orderly
    end, anything else is a question for the last lines and is answered over `answers`.
    """

    def __init__(
        self, output: LogOutput, threshold: int, mark: bytes, answers: socket.socket
    ) -> None:
        self._output = output
        self._threshold = threshold
        self._mark = mark
        self._answers = answers
        self._splitter = LineSplitter()
        self._guess = LevelGuess()
        self._tail: deque[NativeLine] = deque(maxlen=TAIL_LINES)
        self._grave = Allowance(*GRAVE_LINES)
        self._chat = Allowance(*CHAT_LINES)
        self._n_suppressed = 0
        self._tell_at = 0.0
        self._is_stopping = False

    def serve(self, fd: int) -> None:
        """Relay until the last writer of the pipe is gone."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            if poll.poll(self._timeout_ms()):
                data = os.read(fd, READ_BYTES)
                # A last line without its newline is a line all the same.
                for line in self._splitter.feed(data or b"\n"):
                    self._take(line)
                if not data:
                    break
            if time.monotonic() >= self._tell_at:
                self._report_suppressed()
        self._report_suppressed()
        if not self._is_stopping:
            self._log_last_words()

    def _take(self, line: bytes) -> None:
        if line.startswith(self._mark):
            self._obey(line.removeprefix(self._mark))
            return
        text = line.decode(errors="replace").rstrip("\r")
        native = NativeLine(text, self._guess.of(text))
        self._tail.append(native)
        if LEVELS[native.level] < self._threshold:
            return
        now = time.monotonic()
        allowance = self._chat if native.level == "debug" else self._grave
        if allowance.has_any(now):
            allowance.take(tokens_for(self._log(native)))
            return
        if not self._n_suppressed:
            self._tell_at = now + TELL_S
        self._n_suppressed += 1

    def _obey(self, word: bytes) -> None:
        if word == b"stop":
            self._is_stopping = True
            return
        texts = [line.text[:ANSWER_CHARS] for line in self._tail]
        answer = "\n".join([word.decode(), *texts]).encode()
        with suppress(OSError):  # the daemon no longer waits for it
            self._answers.send(answer, socket.MSG_DONTWAIT)

    def _log(self, native: NativeLine) -> int:
        """Log a line; return how many bytes it took."""
        native.is_logged = True
        fields = {"source": "stderr", "text": native.text}
        return self._output.emit(native.level, "native.line", fields)

    def _log_last_words(self) -> None:
        """Log what was held back of the last lines: the daemon died, one of them may say why.

        An error that was its very last line has said so, and stays the last line.
        """
        if self._tail and self._tail[-1].is_logged and self._tail[-1].level == "error":
            return
        held_back = [line for line in self._tail if not line.is_logged]
        if held_back:
            self._output.emit("error", "native.cut_off", {"n_lines": len(held_back)})
        for line in held_back:
            self._log(line)

    def _timeout_ms(self) -> float | None:
        if not self._n_suppressed:
            return None
        return max(0.0, self._tell_at - time.monotonic()) * 1000 + 1

    def _report_suppressed(self) -> None:
        if self._n_suppressed:
            self._output.emit("warning", "native.suppressed", {"n_lines": self._n_suppressed})
            self._n_suppressed = 0
