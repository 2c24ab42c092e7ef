"""A client of its own, in a thread of its own, that asks how a daemon is and times the answers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.messages import GetStatus, Status

PAUSE_S = 0.005  # after an answer: a watcher that is far busier than any should be
LISTEN_S = 0.002  # between attempts to connect to a daemon that has only just been started
ANSWER_S = 60.0  # for one answer, or else the probe has failed
READ_BYTES = 2**16


class Probe:
    """What it took to get a status, in milliseconds, by what the daemon did at that time."""

    def __init__(self, path: Path) -> None:
        self.waits_ms: dict[str, list[float]] = {}
        self.error: Exception | None = None
        self._path = path
        self._situation = ""
        self._has_ended = Event()

    @contextmanager
    def during(self, situation: str) -> Iterator[None]:
        """Count what is asked within the block for a situation."""
        self._situation, before = situation, self._situation
        yield
        self._situation = before

    def end(self) -> None:
        """Ask no more."""
        self._has_ended.set()

    def run(self) -> None:
        """Ask until `end`; what goes wrong is kept as `error`."""
        try:
            with self._connect() as sock:
                self._ask_on(sock)
        except Exception as err:
            self.error = err

    def _connect(self) -> socket.socket:
        while True:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(ANSWER_S)
            try:
                sock.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                if self._has_ended.wait(LISTEN_S):
                    raise
            else:
                return sock

    def _ask_on(self, sock: socket.socket) -> None:
        connection = ClientConnection()
        sock.sendall(connection.hello("probe"))
        n_asked = 0
        while not self._has_ended.wait(PAUSE_S):
            situation, asked_at, n_asked = self._situation, perf_counter(), n_asked + 1
            sock.sendall(connection.send(GetStatus(n_asked)))
            while not any(isinstance(m, Status) for m in connection.receive(_read(sock))):
                pass
            waited_ms = (perf_counter() - asked_at) * 1e3
            if situation:
                self.waits_ms.setdefault(situation, []).append(waited_ms)


def _read(sock: socket.socket) -> bytes:
    data = sock.recv(READ_BYTES)
    if not data:
        raise ConnectionResetError("the daemon has hung up")
    return data


@contextmanager
def probing(path: Path) -> Iterator[Probe]:
    """Ask the daemon that listens at a path, or is about to, as long as the block lasts."""
    probe = Probe(path)
    thread = Thread(target=probe.run, name="probe")
    thread.start()
    try:
        yield probe
    finally:
        probe.end()
        thread.join()
    if probe.error is not None:
        raise probe.error
