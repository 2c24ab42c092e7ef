"""How a log line looks and how it is written: one write, and no reader is waited for.

A log that cannot be written (disk full, reader gone or asleep) loses lines, never the daemon:
they are counted, and the next line that gets through says how many, as `dropped`. Whatever a
client puts into a field, it can neither begin a line of its own nor steer a terminal.
"""

import json
import math
import os
import select
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import structlog

LogFormat = Literal["auto", "console", "json"]
Fields = Mapping[str, object]

STALL_MS = 100  # a reader may pause this long; then lines are dropped until it reads again
HEAD_CHARS = 6000  # what is kept of a long text; with the tail it holds most tracebacks whole
TAIL_CHARS = 2000

# Before a line on a terminal: takes away what stands there without an end, as the bar that
# shows a load does.
ERASE_LINE = "\r\x1b[2K"

# The console renderer writes these as they are, the second ones below the line; every other
# value goes through repr().
CONSOLE_VERBATIM = {"event", "level", "logger", "logger_name"}
CONSOLE_BELOW = {"exception", "stack"}


class LineWriter:
    """Writes whole lines to a descriptor, and waits for no reader.

    Lines of two processes never mix up to 4096 bytes (PIPE_BUF), on files at any length. There
    is no lock: a thread that logs must not wait for another, nor a signal handler for its own.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.n_dropped = 0
        self._is_torn = False  # the last write stopped inside a line
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        # A pipe that polls as writable takes this much without blocking, and perhaps no more.
        self._chunk_bytes = select.PIPE_BUF if is_pipe else 1 << 30

    def write(self, line: str) -> None:
        """Write a line and its newline, or count it as dropped."""
        text = f"\n{line}\n" if self._is_torn else f"{line}\n"
        data = text.encode(errors="backslashreplace")
        rest = memoryview(data)
        with suppress(OSError):  # what is left of `rest` tells that the line was lost
            while rest and self._is_writable():
                rest = rest[os.write(self.fd, rest[: self._chunk_bytes]) :]
        if rest:
            self.n_dropped += 1
            self._is_torn = self._is_torn or len(rest) < len(data)
        else:
            self.n_dropped = 0
            self._is_torn = False

    def _is_writable(self) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(0 if self.n_dropped else STALL_MS))


class LogOutput:
    """Where lines go and how they look. Also used by the relay of native lines."""

    def __init__(self, fd: int, log_format: LogFormat) -> None:
        self.writer = LineWriter(fd)
        is_terminal = os.isatty(fd)
        if log_format == "json" or (log_format == "auto" and not is_terminal):
            self._render: Callable[[Fields], str] = _render_json
        else:
            self._render = _console_renderer(is_terminal)

    def emit(self, level: str, event: str, fields: Fields) -> None:
        """Write one line. The names timestamp, level, event and dropped are taken."""
        line: dict[str, object] = {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": level,
            "event": event,
        }
        for name, value in fields.items():
            line.setdefault(name, _plain(value))
        if self.writer.n_dropped:
            line["dropped"] = self.writer.n_dropped
        self.writer.write(self._render(line))


def escape(text: str) -> str:
    r"""Return the text with everything but printable characters written as \n, \x1b, \u202e."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _plain(value: object) -> object:
    """Return the value as something that both renderers can write, and not too long."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no NaN
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
    text = str(value)
    n_cut = len(text) - HEAD_CHARS - TAIL_CHARS
    if n_cut <= 0:
        return text
    return f"{text[:HEAD_CHARS]} [{n_cut} characters cut] {text[-TAIL_CHARS:]}"


def _render_json(line: Fields) -> str:
    # Printable ASCII only: C1 controls, line separators and lone surrogates come out escaped.
    return json.dumps(line, separators=(",", ":"))


def _console_renderer(is_terminal: bool) -> Callable[[Fields], str]:
    erase = ERASE_LINE if is_terminal else ""
    renderer = structlog.dev.ConsoleRenderer(
        colors=is_terminal,
        repr_native_str=True,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,
    )

    def render(line: Fields) -> str:
        shown = dict(line)
        for name in CONSOLE_VERBATIM & shown.keys():
            shown[name] = escape(str(shown[name]))
        for name in CONSOLE_BELOW & shown.keys():
            # May take lines of its own here, but none that looks like an event.
            texts = str(shown[name]).splitlines()
            shown[name] = "\n".join(f"    {escape(text)}" for text in texts)
        return erase + str(renderer(None, "", shown))

    return render
