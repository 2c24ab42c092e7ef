import fcntl
import io
import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest
import structlog

from runnerd.errors import ConfigError
from runnerd.log import EventLogger, configure_logging, set_level, tell_suppressed
from runnerd.log_lines import escape
from runnerd.log_output import LogFormat, LogOutput

NASTY = 'a\nb\r\x1b[31m\x00\x7f\x9b2J\u2028\u202e\ud800"'

Line = dict[str, object]


class LogFile:
    """A log that goes to a file, and what is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("ab")
        self.log: EventLogger = structlog.get_logger()

    def configure(self, level: str = "info", log_format: LogFormat = "json") -> None:
        configure_logging(level, log_format, self.file.fileno())

    def text(self) -> str:
        return self.path.read_bytes().decode()

    def lines(self) -> list[Line]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[LogFile]:
    log_file = LogFile(tmp_path / "log")
    with log_file.file:
        yield log_file
    structlog.reset_defaults()
    set_level("info")


def test_an_event_is_one_json_line_with_its_facts(log_file: LogFile) -> None:
    log_file.configure()
    log_file.log.info("request.finished", request_id=7, reason="stop", ttft_ms=81.2)
    (line,) = log_file.lines()
    assert list(line) == ["timestamp", "level", "event", "request_id", "reason", "ttft_ms"]
    assert line["level"] == "info"
    assert line["event"] == "request.finished"
    assert (line["request_id"], line["reason"], line["ttft_ms"]) == (7, "stop", 81.2)


def test_the_timestamp_is_utc_with_milliseconds(log_file: LogFile) -> None:
    log_file.configure()
    log_file.log.info("runner.started")
    stamp = str(log_file.lines()[0]["timestamp"])
    assert len(stamp) == len("2026-01-31T10:20:30.123Z")
    assert datetime.fromisoformat(stamp).utcoffset() == timedelta(0)


def test_facts_that_are_bound_are_in_every_line(log_file: LogFile) -> None:
    log_file.configure()
    bound = log_file.log.bind(connection_id=3)
    bound.info("request.accepted", request_id=1)
    assert log_file.lines()[0]["connection_id"] == 3


def test_a_fact_cannot_take_the_place_of_the_level(log_file: LogFile) -> None:
    log_file.configure()
    log_file.log.info("log.level_changed", level="error")
    assert log_file.lines()[0]["level"] == "info"


def test_an_exception_comes_with_its_traceback(log_file: LogFile) -> None:
    log_file.configure()
    try:
        raise TypeError("seven")
    except TypeError:
        log_file.log.exception("runner.failed")
    (line,) = log_file.lines()
    assert line["level"] == "error"
    assert str(line["exception"]).endswith("TypeError: seven")


def test_what_json_cannot_say_becomes_text(log_file: LogFile) -> None:
    log_file.configure()
    log_file.log.info("a.b", ratio=float("nan"), path=Path("/m.gguf"), sizes=(1, float("inf")))
    (line,) = log_file.lines()
    assert (line["ratio"], line["path"], line["sizes"]) == ("nan", "/m.gguf", [1, "inf"])


def test_a_long_text_keeps_its_head_and_its_tail(log_file: LogFile) -> None:
    log_file.configure()
    log_file.log.info("a.b", text="head" + "x" * 100_000 + "tail")
    text = str(log_file.lines()[0]["text"])
    assert text.startswith("head")
    assert text.endswith("tail")
    assert len(text) < 8100


def test_a_client_can_forge_no_line_in_json(log_file: LogFile) -> None:
    log_file.configure()
    log_file.log.info("request.refused", name=NASTY)
    assert log_file.text().strip("\n").isprintable()
    assert log_file.lines()[0]["name"] == NASTY


@pytest.mark.parametrize("field", ["name", "logger", "logger_name"])
def test_a_client_can_forge_no_line_on_a_console(log_file: LogFile, field: str) -> None:
    log_file.configure(log_format="console")
    log_file.log.info(f"request.refused{NASTY}", **{field: NASTY})
    assert log_file.text().rstrip("\n").isprintable()


def test_a_traceback_on_a_console_is_indented_and_escaped(log_file: LogFile) -> None:
    log_file.configure(log_format="console")
    try:
        raise TypeError(NASTY)
    except TypeError:
        log_file.log.exception("runner.failed")
    first, *rest = log_file.text().rstrip("\n").split("\n")
    assert "runner.failed" in first
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_printable_text_is_not_escaped() -> None:
    assert escape("héllo, 世界 🙂") == "héllo, 世界 🙂"


def test_a_file_gets_json_if_the_format_is_auto(log_file: LogFile) -> None:
    log_file.configure(log_format="auto")
    log_file.log.info("runner.started")
    assert log_file.lines()[0]["event"] == "runner.started"


def test_a_console_format_outside_a_terminal_has_no_colours(log_file: LogFile) -> None:
    log_file.configure(log_format="console")
    log_file.log.info("runner.started")
    assert "runner.started" in log_file.text()
    assert "\x1b" not in log_file.text()


def test_a_terminal_gets_coloured_console_lines_if_the_format_is_auto() -> None:
    ours, terminal = pty.openpty()
    LogOutput(terminal, "auto").emit("info", "runner.started", {"n_slots": 4})
    seen = os.read(ours, 4096).decode()
    os.close(ours)
    os.close(terminal)
    assert "runner.started" in seen
    assert "\x1b[" in seen


def test_events_below_the_level_are_not_logged(log_file: LogFile) -> None:
    log_file.configure("warning")
    log_file.log.info("a.b")
    log_file.log.warning("c.d")
    assert [line["event"] for line in log_file.lines()] == ["c.d"]


def test_a_new_level_reaches_loggers_in_use(log_file: LogFile) -> None:
    log_file.configure("info")
    bound = log_file.log.bind(seq_id=1)
    bound.debug("a.b")
    set_level("debug")
    bound.debug("c.d")
    set_level("error")
    bound.warning("e.f")
    assert [line["event"] for line in log_file.lines()] == ["c.d"]


def test_a_new_output_reaches_loggers_in_use(log_file: LogFile, tmp_path: Path) -> None:
    log_file.configure()
    log_file.log.info("a.b")
    with (tmp_path / "other").open("wb") as other:
        configure_logging("info", "json", other.fileno())
        log_file.log.info("c.d")
    assert [line["event"] for line in log_file.lines()] == ["a.b"]
    assert b"c.d" in (tmp_path / "other").read_bytes()


def test_an_unknown_level_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="'loud' is none of debug, info"):
        set_level("loud")


def test_warnings_of_other_libraries_come_into_the_same_log(log_file: LogFile) -> None:
    log_file.configure()
    logging.getLogger("asyncio").warning("slow callback: %d ms", 120)
    logging.getLogger("asyncio").info("not this")
    (line,) = log_file.lines()
    assert (line["level"], line["logger"]) == ("warning", "asyncio")
    assert line["text"] == "slow callback: 120 ms"


def test_errors_in_the_log_of_other_libraries_do_not_quote_what_they_are_about(
    log_file: LogFile,
) -> None:
    log_file.configure()
    try:
        raise KeyError("secret")
    except KeyError as err:
        logging.getLogger("asyncio").error("never retrieved\nfuture: %r", err, exc_info=err)
    (line,) = log_file.lines()
    assert "KeyError" in str(line["exception"])
    assert "secret" not in log_file.text().replace('raise KeyError(\\"secret\\")', "")


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    with open("/dev/full", "wb") as full:
        output = LogOutput(full.fileno(), "json")
        output.emit("info", "a.b", {})
        output.emit("info", "a.b", {})
        assert output.writer.n_dropped == 2


def test_a_reader_that_is_gone_loses_lines_and_nothing_else() -> None:
    reader, writer = os.pipe()
    output = LogOutput(writer, "json")
    os.close(reader)
    output.emit("info", "a.b", {})
    os.close(writer)
    assert output.writer.n_dropped == 1


def stalled_pipe() -> tuple[io.BufferedReader, int]:
    """Return a reader, and a writer that has filled the pipe to the last page."""
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 65536)
    os.write(writer, b" " * (size - 1) + b"\n")
    return os.fdopen(reader, "rb"), writer


def test_a_sleeping_reader_is_told_how_many_lines_it_missed() -> None:
    reader, writer = stalled_pipe()
    output = LogOutput(writer, "json")
    for _ in range(3):
        output.emit("info", "missed.line", {})
    reader.readline()
    output.emit("info", "first.after", {})
    output.emit("info", "second.after", {})
    os.close(writer)
    with reader:
        first, second = (json.loads(line) for line in reader)
    assert first["dropped"] == 3
    assert "dropped" not in second


def test_a_line_that_was_cut_off_does_not_spoil_the_next_one() -> None:
    reader, writer = stalled_pipe()
    output = LogOutput(writer, "json")
    os.read(reader.fileno(), 4096)  # room for the first part of the line, not for all of it
    output.emit("info", "cut.line", {"text": "x" * 7000})
    reader.readline()
    output.emit("info", "whole.line", {})
    os.close(writer)
    with reader:
        lines = reader.read().splitlines()
    assert json.loads(lines[-1])["event"] == "whole.line"
    assert json.loads(lines[-1])["dropped"] == 1


def test_a_daemon_with_stderr_closed_runs_and_leaves_its_number_taken() -> None:
    script = (
        "import os, structlog\n"
        "from runnerd.log import configure_logging\n"
        "configure_logging('info')\n"
        "structlog.get_logger().info('runner.started')\n"
        "print(os.open('/dev/null', os.O_RDONLY) > 2)\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == "True\n"


def test_logging_calls_return_normally_when_nothing_can_be_written(log_file: LogFile) -> None:
    with open("/dev/full", "wb") as full:
        configure_logging("info", "json", full.fileno())
    log_file.log.error("a.b")
    logging.getLogger("asyncio").error("c")
    log_file.configure()
    log_file.log.error("a.d")
    assert [line["event"] for line in log_file.lines()] == ["a.d"]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError


def test_an_event_that_cannot_be_logged_is_named_with_its_error(log_file: LogFile) -> None:
    log_file.configure()
    log_file.log.info("a.b", fact=Unprintable())
    log_file.log.info("a.c")
    lost, after = log_file.lines()
    assert (lost["event"], lost["level"], lost["lost"]) == ("log.failed", "error", "a.b")
    assert "RuntimeError" in str(lost["exception"])
    assert after["event"] == "a.c"
    assert "dropped" not in after


def test_events_that_can_never_be_logged_are_no_flood(log_file: LogFile) -> None:
    log_file.configure()
    for _ in range(1000):
        log_file.log.info("a.b", fact=Unprintable())
    assert 0 < len(log_file.lines()) < 100


def test_a_limit_on_the_size_of_files_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    script = (
        "import resource, structlog\n"
        "from runnerd.log import configure_logging\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4030, 4030))\n"
        "output = configure_logging('info')\n"
        "for _ in range(100):\n"
        "    structlog.get_logger().info('daemon.tested')\n"
        "print(output.writer.n_dropped)\n"
    )
    with (tmp_path / "log").open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=file,
            timeout=20,
            check=True,
        )
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert len(lines[:-1]) + int(done.stdout) == 100
    assert all(json.loads(line)["event"] == "daemon.tested" for line in lines[:-1])


def test_a_flood_is_cut_off_and_told_before_the_next_step_of_a_life_cycle(
    log_file: LogFile,
) -> None:
    log_file.configure()
    for _ in range(1000):
        log_file.log.warning("client.complained")
    log_file.log.info("daemon.stopped")
    *complaints, told, stopped = log_file.lines()
    assert {line["event"] for line in complaints} == {"client.complained"}
    assert (told["event"], told["level"]) == ("log.suppressed", "warning")
    assert told["suppressed"] == "client.complained"
    assert len(complaints) + int(str(told["n_lines"])) == 1000
    assert stopped["event"] == "daemon.stopped"


def test_a_flood_of_another_library_is_cut_off_too(log_file: LogFile) -> None:
    log_file.configure()
    for _ in range(1000):
        logging.getLogger("asyncio").warning("socket.accept() out of system resource")
    log_file.log.info("daemon.stopped")
    *_, told, _ = log_file.lines()
    assert told["suppressed"] == "library.logged"


def test_lines_below_the_level_are_not_told_as_suppressed(log_file: LogFile) -> None:
    log_file.configure("warning")
    for _ in range(1000):
        log_file.log.info("a.b")
    log_file.log.warning("daemon.stopped")
    assert [line["event"] for line in log_file.lines()] == ["daemon.stopped"]


@pytest.mark.anyio
async def test_a_flood_is_told_within_a_second_or_so_also_if_nothing_follows(
    log_file: LogFile,
) -> None:
    log_file.configure()
    for _ in range(1000):
        log_file.log.info("a.b")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell_suppressed)
        with anyio.fail_after(10):
            while log_file.lines()[-1]["event"] != "log.suppressed":
                await anyio.sleep(0.05)  # a line in a file sets no event
        tasks.cancel_scope.cancel()
