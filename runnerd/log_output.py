"""Where log lines go, and how they look.

A log that cannot be written (disk full or hung, reader gone or asleep) loses lines, never the
daemon: they are counted, and the next line that gets through says how many, as `dropped`.
"""

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from runnerd.file_writer import FileWriter
from runnerd.journal import SOCKET_PATH, JournalWriter, encode_entry, is_journal, priority
from runnerd.line_writer import LineWriter, Writer
from runnerd.log_lines import Fields, console_renderer, plain, render_json

LINGER_S = 0.5  # what a log may take of the end of a process

LogFormat = Literal["auto", "console", "json", "journal"]


class LogOutput:
    """Where lines go and how they look. Also used by the relay of native lines.

    To the journal, if that is asked for, or if it is what `fd` leads to and "auto" may choose;
    `problem` says why not, and then they are JSON with the level as the journal reads it. Else
    "auto" is for people on a terminal, and JSON elsewhere.
    """

    def __init__(self, fd: int, log_format: LogFormat, journal_path: str = SOCKET_PATH) -> None:
        self.problem = ""
        self._fd = fd
        goes_to_journal = is_journal(fd)
        if log_format == "journal" or (log_format == "auto" and goes_to_journal):
            try:
                self.writer: Writer = JournalWriter(journal_path)
            except OSError as err:
                self.problem = f"{journal_path}: {err.strerror}"
            else:
                self._render: Callable[[Fields], bytes] = encode_entry
                return
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self.writer = FileWriter(fd) if is_file else LineWriter(fd)
        is_terminal = os.isatty(fd)
        if log_format == "console" or (log_format == "auto" and is_terminal):
            self._render = console_renderer(is_terminal=is_terminal)
        elif goes_to_journal or log_format == "journal":
            self._render = _render_with_priority
        else:
            self._render = render_json

    def emit(self, level: str, event: str, fields: Fields) -> int:
        """Write one line; return how many bytes it has.

        The names timestamp, level, event and dropped are taken.
        """
        line: dict[str, object] = {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": level,
            "event": event,
        }
        for name, value in fields.items():
            line.setdefault(name, plain(value))
        if self.writer.n_dropped:
            line["dropped"] = self.writer.n_dropped
        record = self._render(line)
        self.writer.write(record)
        return len(record)

    def linger(self, within_s: float = LINGER_S) -> None:
        """Wait a moment until what was written is where it belongs; for who ends now."""
        self.writer.linger(within_s)

    def close(self) -> None:
        """Write no more, and close `fd`."""
        if self.writer.fd != self._fd:
            os.close(self._fd)
        self.writer.close()


def _render_with_priority(line: Fields) -> bytes:
    """Return JSON behind the level as the journal takes it off a line: <4>."""
    return b"<%d>%s" % (priority(line["level"]), render_json(line))
