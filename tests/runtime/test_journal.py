"""What the journal is sent, read back as the journal does; and a journal that does not read."""

import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from runnerd.journal import encode_entry, is_journal
from runnerd.log import configure_logging
from runnerd.log_output import LogFormat, LogOutput

NASTY = "a\nPRIORITY=0\n\x1b[31m\x00\u2028\ud800"


def fields_of(entry: bytes) -> dict[str, str]:
    """Read an entry by the rules of the protocol; each field may be there once."""
    fields: dict[str, str] = {}
    while entry:
        first, _, rest = entry.partition(b"\n")
        name, has_value, value = first.partition(b"=")
        if not has_value:
            (n_bytes,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + n_bytes], rest[8 + n_bytes :]
            assert rest.startswith(b"\n")
            rest = rest[1:]
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
        entry = rest
    return fields


class FakeJournal:
    """Listens where a journal would, and shows what it got."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)

    def entries(self) -> list[dict[str, str]]:
        found = []
        while True:
            try:
                found.append(fields_of(self.socket.recv(2**18)))
            except BlockingIOError:
                return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FakeJournal]:
    journal = FakeJournal(tmp_path / "journal")
    with journal.socket:
        yield journal


@pytest.fixture
def output(journal: FakeJournal) -> Iterator[LogOutput]:
    output = LogOutput(os.open(os.devnull, os.O_WRONLY), "journal", journal.path)
    yield output
    output.close()


def test_an_event_comes_with_its_facts_as_fields(journal: FakeJournal, output: LogOutput) -> None:
    facts = {"request_id": 7, "ttft_ms": 81.2, "reason": "stop", "is_last": True, "none": None}
    output.emit("warning", "request.finished", {**facts, "sizes": [1, "b"]})
    assert journal.entries() == [
        {
            "MESSAGE": "request.finished request_id=7 ttft_ms=81.2 reason=stop is_last=true"
            " none=none sizes='1, b'",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "runnerd",
            "RUNNERD_EVENT": "request.finished",
            "RUNNERD_REQUEST_ID": "7",
            "RUNNERD_TTFT_MS": "81.2",
            "RUNNERD_REASON": "stop",
            "RUNNERD_IS_LAST": "true",
            "RUNNERD_NONE": "none",
            "RUNNERD_SIZES": "1, b",
        }
    ]


@pytest.mark.parametrize(
    ("level", "priority"),
    [("debug", "7"), ("info", "6"), ("warning", "4"), ("error", "3"), ("critical", "2")],
)
def test_a_level_is_a_priority(
    level: str, priority: str, journal: FakeJournal, output: LogOutput
) -> None:
    output.emit(level, "a.b", {})
    assert journal.entries()[0]["PRIORITY"] == priority


def test_a_traceback_keeps_its_lines(journal: FakeJournal, output: LogOutput) -> None:
    traceback = "Traceback:\n  line 1\nValueError: \x1b[31m"
    output.emit("error", "a.b", {"exception": traceback, "n": 1})
    (entry,) = journal.entries()
    assert entry["RUNNERD_EXCEPTION"] == "Traceback:\n  line 1\nValueError: \\x1b[31m"
    assert entry["MESSAGE"] == f"a.b n=1\n{entry['RUNNERD_EXCEPTION']}"


@given(st.text(), st.text(min_size=1), st.text())
def test_a_client_can_forge_no_field(value: str, name: str, exception: str) -> None:
    line = {"level": "info", "event": "a.b", "exception": exception + NASTY, f"x{name}": value}
    fields = fields_of(encode_entry(line))
    assert len(fields) == 6
    assert fields["PRIORITY"] == "6"
    assert all(len(field) <= 64 and field.isascii() for field in fields)
    assert all(char.isprintable() or char == "\n" for char in "".join(fields.values()))


@given(st.lists(st.text()))
def test_a_client_can_break_no_line_of_a_message(values: list[str]) -> None:
    entry = encode_entry({"level": "info", "event": "a.b", "values": [*values, NASTY]})
    assert fields_of(entry)["MESSAGE"].isprintable()


def test_a_journal_that_does_not_read_costs_lines_and_is_told_how_many(
    journal: FakeJournal, output: LogOutput
) -> None:
    n_sent = 0
    while not output.writer.n_dropped:
        output.emit("info", "a.b", {"n": n_sent})
        n_sent += 1
    output.emit("info", "a.b", {})
    assert len(journal.entries()) == n_sent - 1
    output.emit("info", "c.d", {})
    output.emit("info", "e.f", {})
    first, second = journal.entries()
    assert first["RUNNERD_DROPPED"] == "2"
    assert "RUNNERD_DROPPED" not in second


def test_an_entry_that_is_too_large_counts_as_dropped(
    journal: FakeJournal, output: LogOutput
) -> None:
    output.emit("info", "a.b", {f"n{i}": "x" * 9000 for i in range(60)})
    assert output.writer.n_dropped == 1
    output.emit("info", "c.d", {})
    assert journal.entries()[0]["RUNNERD_DROPPED"] == "1"


def test_a_journal_that_is_gone_costs_lines_and_one_that_is_back_gets_them(
    journal: FakeJournal, output: LogOutput
) -> None:
    journal.socket.close()
    output.emit("info", "a.b", {})
    os.unlink(journal.path)
    output.emit("info", "a.b", {})
    assert output.writer.n_dropped == 2
    new = FakeJournal(Path(journal.path))
    with new.socket:
        output.emit("info", "c.d", {})
        assert [entry["RUNNERD_DROPPED"] for entry in new.entries()] == ["2"]


def test_who_ends_waits_only_for_a_journal_that_reads(
    journal: FakeJournal, output: LogOutput
) -> None:
    output.linger(0.5)
    output.emit("info", "a.b", {})
    output.linger(0.5)  # it does not read, and is not waited for for ever
    assert len(journal.entries()) == 1


def test_without_a_journal_lines_have_the_level_that_a_journal_reads(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        output = LogOutput(file.fileno(), "journal", str(tmp_path / "none"))
        output.emit("warning", "a.b", {})
    line = (tmp_path / "log").read_text()
    assert output.problem == f"{tmp_path / 'none'}: No such file or directory"
    assert line.startswith("<4>")
    assert json.loads(line[3:])["event"] == "a.b"


@pytest.mark.parametrize("log_format", ["auto", "json"])
def test_a_journal_that_takes_only_lines_is_told_their_level(
    log_format: LogFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "log").open("wb") as file:
        name_as_journal(file.fileno(), monkeypatch)
        LogOutput(file.fileno(), log_format, str(tmp_path / "none")).emit("info", "a.b", {})
    assert (tmp_path / "log").read_text().startswith("<6>{")


def test_the_journal_is_chosen_where_stderr_leads_to_it(
    journal: FakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    name_as_journal(file, monkeypatch)
    output = LogOutput(file, "auto", journal.path)
    output.emit("info", "a.b", {})
    output.close()
    assert len(journal.entries()) == 1
    assert (tmp_path / "log").read_bytes() == b""


def test_a_stderr_that_was_redirected_is_not_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "a").open("wb") as journal, (tmp_path / "b").open("wb") as other:
        name_as_journal(journal.fileno(), monkeypatch)
        assert is_journal(journal.fileno())
        assert not is_journal(other.fileno())
    assert not is_journal(99_999)


def test_a_log_that_cannot_go_to_the_journal_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/run/systemd/journal/socket").exists():
        pytest.skip("there is a journal here")
    with (tmp_path / "log").open("wb") as file:
        configure_logging("info", "journal", file.fileno())
        structlog.get_logger().info("a.b")
    structlog.reset_defaults()
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first.startswith("<4>")
    assert json.loads(first[3:])["event"] == "log.degraded"
    assert second.startswith("<6>")


def name_as_journal(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.fstat(fd)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
