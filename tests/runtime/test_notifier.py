"""What the service manager hears, on a socket that stands in for it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnerd.systemd.notifier import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def heard(manager: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_the_load_is_told_at_each_phase_and_once_a_second(manager: socket.socket) -> None:
    notifier = Notifier(str(manager.getsockname()))
    for now, phase, fraction in [
        (10.0, "open", 0.0),
        (10.1, "weights", 0.0),
        (10.2, "weights", 0.1),
        (11.0, "weights", 0.3),
        (11.1, "weights", 0.456),
        (12.0, "weights", 0.6),
        (12.1, "context", 0.0),
    ]:
        notifier.loading(phase, fraction, now)
    assert heard(manager) == [
        "STATUS=loading: open, 0%",
        "STATUS=loading: weights, 0%",
        "STATUS=loading: weights, 46%",
        "STATUS=loading: context, 0%",
    ]


def test_a_text_stays_one_line(manager: socket.socket) -> None:
    Notifier(str(manager.getsockname())).ready("serving a\nREADY=0")
    assert heard(manager) == ["READY=1\nSTATUS=serving a READY=0"]


def test_without_a_manager_nothing_is_sent() -> None:
    Notifier().ready("serving")
