"""The journal's own protocol: a datagram for each event, with every fact as a field.

A field is `NAME=value` and a newline, or, where the value has newlines of its own, `NAME`, a
newline, the value's length (64 bits, little-endian), the value, and a newline: no value can pass
for a field. Values are cut before they come here, so that an event fits into one datagram.
Source: systemd.io/JOURNAL_NATIVE_PROTOCOL.
"""

import errno
import fcntl
import os
import re
import socket
import struct
import termios
from array import array
from functools import lru_cache
from time import monotonic, sleep

from runnerd.line_writer import STALL_MS, is_writable
from runnerd.log_lines import LONG_FIELDS, Fields, escape

SOCKET_PATH = "/run/systemd/journal/socket"
IDENTIFIER = "runnerd"
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog's
OTHER_PRIORITY = 5
LOOK_UP_S = 0.01  # what the journal may take to look up a sender
NAME_CHARS = 64  # more of a name the journal does not take

OWN_FIELDS = {"timestamp", "level"}  # the journal has these for itself

# What a socket says whose other end is gone, as when the journal has been restarted.
GONE = {errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE}


def is_journal(fd: int) -> bool:
    """Say whether what is written to the descriptor goes to the journal."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def priority(level: object) -> int:
    """Return syslog's number for a level."""
    return PRIORITIES.get(str(level), OTHER_PRIORITY)


def encode_entry(line: Fields) -> bytes:
    """Return an event as a datagram: MESSAGE for people to read, and each fact by its name."""
    texts = {name: _text(value) for name, value in line.items() if name not in OWN_FIELDS}
    for name in LONG_FIELDS & texts.keys():  # may have lines of their own; others have them escaped
        texts[name] = "\n".join(map(escape, str(line[name]).splitlines()))
    entry = bytearray()
    _add(entry, "MESSAGE", _message(texts))
    _add(entry, "PRIORITY", str(priority(line["level"])))
    _add(entry, "SYSLOG_IDENTIFIER", IDENTIFIER)
    for name, text in texts.items():
        _add(entry, _field_name(name), text)
    return bytes(entry)


def _message(texts: dict[str, str]) -> str:
    """Return the event and its facts on one line, and what is longer below it."""
    event, *below = texts["event"], *(texts[name] for name in sorted(LONG_FIELDS & texts.keys()))
    facts = [
        f"{escape(name)}={_quoted(text)}"
        for name, text in texts.items()
        if name != "event" and name not in LONG_FIELDS
    ]
    return "\n".join([" ".join([event, *facts]), *below])


def _quoted(text: str) -> str:
    return text if text and not set(text) & set(" =\"'") else repr(text)


def _text(value: object) -> str:
    match value:
        case bool() | None:
            return str(value).lower()
        case list():
            return ", ".join(map(_text, value))
    return escape(str(value))


def _add(entry: bytearray, name: str, text: str) -> None:
    value = text.encode(errors="backslashreplace")
    if b"\n" in value:
        entry += b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value)
    else:
        entry += b"%s=%s\n" % (name.encode(), value)


@lru_cache(maxsize=1024)
def _field_name(name: str) -> str:
    return f"RUNNERD_{re.sub('[^A-Z0-9_]', '_', name.upper())}"[:NAME_CHARS]


class JournalWriter:
    """Sends entries to the journal, and never waits for it longer than `STALL_MS`.

    Like a pipe's, its lines are lost and counted while the reader sleeps or is gone.
    """

    def __init__(self, path: str = SOCKET_PATH) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there.
        """
        self.n_dropped = 0
        self._path = path
        self._socket = self._connect()

    @property
    def fd(self) -> int:
        """The descriptor of its socket."""
        return self._socket.fileno()

    def write(self, record: bytes) -> None:
        """Send an entry, or count it as dropped."""
        try:
            is_sent = self._send(record)
        except OSError as err:
            is_sent = err.errno in GONE and self._send_anew(record)
        self.n_dropped = 0 if is_sent else self.n_dropped + 1

    def linger(self, within_s: float) -> None:
        """Wait until the journal has taken all entries, for a while.

        It looks up in /proc whose they are: those of a process that has gone belong to no unit.
        """
        n_unread = array("i", [1])
        deadline = monotonic() + within_s
        while n_unread[0] and monotonic() < deadline:
            sleep(LOOK_UP_S)  # no event tells that an entry was taken, or its sender looked up
            fcntl.ioctl(self._socket, termios.TIOCOUTQ, n_unread)
        sleep(LOOK_UP_S)

    def close(self) -> None:
        """Send no more."""
        self._socket.close()

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        return sock

    def _send(self, record: bytes) -> bool:
        if not is_writable(self.fd, 0 if self.n_dropped else STALL_MS):
            return False
        self._socket.send(record)
        return True

    def _send_anew(self, record: bytes) -> bool:
        """Send an entry by a new connection, under the number of the old one."""
        try:
            with self._connect() as fresh:
                os.dup2(fresh.fileno(), self._socket.fileno(), inheritable=False)
            return self._send(record)
        except OSError:  # nobody is there yet, or the entry does not fit: it counts as dropped
            return False
