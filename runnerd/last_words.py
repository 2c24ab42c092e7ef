"""What a child has written to stderr lately, and the one line of it that tells most."""

import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import ByteReceiveStream

KEPT_BYTES = 8192
SUMMARY_CHARS = 500
ASSERTION = re.compile(r"GGML_ASSERT|GGML_ABORT|\w\.(?:c|cpp|cu|h|hpp|m):\d+: ")  # of ggml_abort
BUILD_FOLDER = re.compile(r"\S*/(?=llama\.cpp/)")  # where somebody has compiled the library
CUT_OFF = "native.cut_off"  # what the log relay adds when the daemon is gone without a word


class _LogLine(msgspec.Struct):
    """What a line of the daemon's JSON log says about a failure."""

    level: str
    event: str
    error: str = ""
    exception: str = ""
    text: str = ""
    native: list[str] = []


class LastWords:
    """Reads a stderr to its end; keeps about the last 8 KiB, in whole lines."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self.complete = anyio.Event()
        self._on_line = on_line
        self._lines: deque[str] = deque()
        self._n_chars = 0

    @property
    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)

    async def read(self, stream: ByteReceiveStream) -> None:
        """Read lines until the stream ends."""
        rest = b""
        async for data in stream:
            *whole, rest = (rest + data).split(b"\n")
            if len(rest) > KEPT_BYTES:  # a line without an end must not fill memory
                whole, rest = [*whole, rest], b""
            for line in whole:
                self._keep(line.decode(errors="replace"))
        if rest:
            self._keep(rest.decode(errors="replace"))
        self.complete.set()

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        self._n_chars += len(line)
        while self._n_chars > KEPT_BYTES and len(self._lines) > 1:
            self._n_chars -= len(self._lines.popleft())
        if self._on_line is not None:
            self._on_line(line)

    def summary(self) -> str:
        """Return the cause of a failure: the last logged error, else the last line."""
        other = ""
        for line in reversed(self._lines):
            try:
                logged = msgspec.json.decode(line, type=_LogLine)
            except msgspec.DecodeError:
                other = other or line.strip()
                continue
            if logged.event == CUT_OFF:  # says that it ended, which is known, not why
                continue
            if logged.level in ("error", "critical"):
                return _cut(_cause(logged))
        return _cut(other)

    def assertion(self) -> str:
        """Return the line in which native code says which of its checks has failed, if any."""
        for line in reversed(self._lines):
            if ASSERTION.search(line):
                text = ""
                with suppress(msgspec.DecodeError):
                    text = msgspec.json.decode(line, type=_LogLine).text
                return _cut(BUILD_FOLDER.sub("", text or line.strip(), count=1))
        return ""


def _cause(line: _LogLine) -> str:
    exception = line.exception.strip().rpartition("\n")[2]
    cause = line.error or exception or line.text or line.event
    return "; ".join([cause, *line.native])


def _cut(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARS else f"{text[:SUMMARY_CHARS]}..."
