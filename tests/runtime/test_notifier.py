"""What the service manager hears, on a socket that stands in for it."""

import errno
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runnerd.errors import ConfigError, LoadError
from runnerd.systemd.notifier import Notifier
from tests.service_manager import Hearing, hearing

EXTEND = "EXTEND_TIMEOUT_USEC=300000000"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Hearing]:
    with hearing(str(tmp_path / "notify")) as manager:
        yield manager


def test_a_load_that_moves_is_told_at_each_phase_and_once_a_second(manager: Hearing) -> None:
    notifier = Notifier(manager.address)
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
    assert manager.so_far() == [
        f"{EXTEND}\nSTATUS=loading: open, 0%",
        f"{EXTEND}\nSTATUS=loading: weights, 0%",
        f"{EXTEND}\nSTATUS=loading: weights, 46%",
        f"{EXTEND}\nSTATUS=loading: context, 0%",
    ]


def test_a_load_that_does_not_move_gets_no_more_time(manager: Hearing) -> None:
    notifier = Notifier(manager.address)
    for now in range(10, 1000):
        notifier.loading("weights", 0.3, float(now))
    assert manager.so_far() == [f"{EXTEND}\nSTATUS=loading: weights, 30%"]


@pytest.mark.parametrize("load_timeout_s", [0.1, 1.0, 3.0, 300.0])
def test_a_load_that_moves_asks_for_time_before_it_is_out(
    manager: Hearing, load_timeout_s: float
) -> None:
    notifier = Notifier(manager.address, load_timeout_s)
    asked_at = 0.0
    for tick in range(1000):
        now = tick * load_timeout_s / 50
        notifier.loading("weights", tick / 1000, now)
        if manager.so_far():
            asked_at = now
        assert now - asked_at <= load_timeout_s / 3


def test_a_text_stays_one_line_that_fits(manager: Hearing) -> None:
    Notifier(manager.address).ready("serving a\nREADY=0\r" + "x" * 10_000)
    (message,) = manager.so_far()
    assert message.startswith("READY=1\nSTATUS=serving a READY=0 xxx")
    assert len(message) < 600


def test_a_text_that_is_no_unicode_is_told_all_the_same(manager: Hearing) -> None:
    Notifier(manager.address).failed("no file \udcff.gguf")
    assert manager.so_far() == ["STATUS=failed: no file ?.gguf"]


def test_a_reload_is_one_message_with_the_time_and_ends_with_ready(manager: Hearing) -> None:
    notifier = Notifier(manager.address)
    notifier.ready("serving smollm2")
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    notifier.reloaded("settings read")
    _, reloading, ready = manager.so_far()
    lines = dict(line.split("=", 1) for line in reloading.splitlines())
    assert lines["RELOADING"] == "1"
    assert before <= int(lines["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert ready == "READY=1\nSTATUS=serving smollm2; settings read"


def test_a_failure_tells_the_number_of_the_error_it_comes_from(manager: Hearing) -> None:
    notifier = Notifier(manager.address)
    try:
        try:
            raise PermissionError(errno.EACCES, "Permission denied")
        except OSError as err:
            raise ConfigError("cannot bind /run/x: Permission denied") from err
    except ConfigError as err:
        notifier.failed(str(err), err)
    notifier.failed("no tensors", LoadError("no tensors"))
    assert manager.so_far() == [
        "STATUS=failed: cannot bind /run/x: Permission denied\nERRNO=13",
        "STATUS=failed: no tensors",
    ]


def test_after_a_failure_nothing_says_that_it_serves(manager: Hearing) -> None:
    notifier = Notifier(manager.address)
    notifier.ready("serving smollm2")
    notifier.failed("the engine broke")
    notifier.resumed()
    assert manager.so_far()[-1] == "STATUS=failed: the engine broke"


def test_an_abstract_name_is_heard() -> None:
    with hearing("@runnerd-test-notify") as manager:
        Notifier("@runnerd-test-notify").ping()
        assert manager.so_far() == ["WATCHDOG=1"]


def test_without_a_manager_nothing_is_sent() -> None:
    with capture_logs() as lines:
        assert Notifier().ready("serving")
    assert lines == []


def test_a_manager_that_is_gone_costs_one_line_of_the_log(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "nobody"))
    with capture_logs() as lines:
        assert notifier.ready("serving")  # trying again would not help
        for _ in range(100):
            notifier.ping()
    assert [line["event"] for line in lines] == ["systemd.not_told"]


def test_a_manager_with_too_much_to_read_is_not_waited_for(manager: Hearing) -> None:
    notifier = Notifier(manager.address)
    started_at = time.monotonic()
    with capture_logs() as lines:
        for _ in range(5000):
            notifier.ping()
        assert not notifier.ready("serving")
    assert time.monotonic() - started_at < 5
    assert len(lines) == 1
    manager.so_far()
    assert notifier.ready("serving")


def test_nothing_stays_open(manager: Hearing) -> None:
    with socket.socket() as probe:
        free_fd = probe.fileno()
    notifier = Notifier(manager.address)
    for _ in range(10):
        notifier.ping()
    with socket.socket() as probe:
        assert probe.fileno() == free_fd
