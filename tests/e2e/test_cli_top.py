import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import COMMAND, PATIENCE_S, run, running, serving


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("top") / "socket"
    with serving(path, "layers=0,step_ms=10"):
        yield str(path)


def test_a_socket_must_be_named() -> None:
    ended = run("top")
    assert ended.code == 64
    assert "--socket" in ended.err


# --- without a terminal ------------------------------------------------------------------------


def test_without_a_terminal_each_look_is_a_line(socket_path: str) -> None:
    with running("top", f"--socket={socket_path}", "--interval=0.05") as command:
        command.wait_for("\n")
        command.wait_for("state=ready")
        command.interrupt()
        assert command.wait() == 130
        text = command.rest()
    assert "\x1b" not in text
    assert "Traceback" not in text
    assert all(line.startswith(socket_path) for line in text.splitlines())


def test_a_reader_that_has_had_enough_ends_it_quietly(socket_path: str) -> None:
    command = [*COMMAND, "top", "--interval=0.05", f"--socket={socket_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == b""


def test_a_full_disk_is_named(socket_path: str) -> None:
    command = [*COMMAND, "top", f"--socket={socket_path}"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 74
    assert done.stderr == b"runnerd: cannot write: No space left on device\n"


def test_a_daemon_that_comes_and_goes_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running("top", f"--socket={path}", "--interval=0.05") as command:
        command.wait_for('trouble="nobody listens there"')
        with serving(path) as daemon:
            command.wait_for("state=ready")
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.wait()
            command.wait_for('trouble="it has gone"')
        with serving(path):
            command.wait_for_another("state=ready")
        command.interrupt()
        assert command.wait() == 130


def test_a_daemon_that_hangs_is_told_from_one_that_is_idle(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        serving(path) as daemon,
        running("top", f"--socket={path}", "--interval=0.05") as command,
    ):
        command.wait_for("state=ready")
        os.kill(daemon.process.pid, signal.SIGSTOP)
        command.wait_for('trouble="no answer"')
        os.kill(daemon.process.pid, signal.SIGCONT)
        command.wait_for_another("state=ready")
        command.interrupt()
        assert command.wait() == 130


# --- on a terminal -----------------------------------------------------------------------------


def test_on_a_terminal_q_ends_and_the_terminal_is_as_before(socket_path: str) -> None:
    arguments = ("top", f"--socket={socket_path}", "--interval=0.05")
    with running(*arguments, on_terminal=True, has_keys=True) as command:
        command.wait_for("q ends")
        command.wait_for("ready")
        assert not command.terminal_flags() & (termios.ICANON | termios.ECHO)
        command.press("xq")
        command.wait_for("\x1b[?1049l")
        assert command.wait() == 0
        assert "Traceback" not in command.text
        assert command.terminal_flags() & termios.ICANON
        assert command.terminal_flags() & termios.ECHO
        assert command.text.rindex("\x1b[?25h") > command.text.rindex("\x1b[?25l")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(
    number: signal.Signals, socket_path: str
) -> None:
    arguments = ("top", f"--socket={socket_path}", "--interval=0.05")
    with running(*arguments, on_terminal=True, has_keys=True) as command:
        command.wait_for("ready")
        os.kill(command.process.pid, number)
        command.wait_for("\x1b[?1049l")
        assert command.wait() == 128 + number
        assert "Traceback" not in command.text
        assert command.terminal_flags() & termios.ICANON
        assert command.terminal_flags() & termios.ECHO


def test_a_terminal_alone_is_enough_to_end_by_ctrl_c(socket_path: str) -> None:
    with running("top", f"--socket={socket_path}", on_terminal=True) as command:
        command.wait_for("Ctrl-C ends")
        command.interrupt()
        command.wait_for("\x1b[?1049l")
        assert command.wait() == 130


def test_several_daemons_are_watched_at_once(socket_path: str, tmp_path: Path) -> None:
    sockets = (f"--socket={socket_path}", f"--socket={tmp_path}/no")
    with running("top", *sockets, on_terminal=True) as command:
        command.wait_for("nobody listens there")
        command.wait_for("ready")
        command.interrupt()
        command.wait_for("\x1b[?1049l")
        assert command.wait() == 130
        assert "Traceback" not in command.text


def test_it_ends_with_its_terminal(socket_path: str) -> None:
    arguments = ("top", f"--socket={socket_path}", "--interval=0.05")
    with running(*arguments, on_terminal=True, has_keys=True) as command:
        command.wait_for("ready")
        command.hang_up()
        assert command.wait() == 74


@pytest.mark.parametrize("columns", [1, 12, 40])
def test_a_narrow_terminal_does_not_end_it(columns: int, socket_path: str) -> None:
    arguments = ("top", f"--socket={socket_path}", "--interval=0.05")
    with running(*arguments, on_terminal=True, has_keys=True, columns=columns) as command:
        command.wait_for("\x1b[?1049h")
        for _ in range(3):
            command.wait_for_output()
        command.press("q")
        command.wait_for("\x1b[?1049l")
        assert command.wait() == 0
        assert "Traceback" not in command.text


def test_a_request_shows_in_its_slot(socket_path: str) -> None:
    generate = ("generate", "hello", f"--socket={socket_path}", "--shift")
    with (
        running(*generate) as client,
        running("top", f"--socket={socket_path}", "--interval=0.05", on_terminal=True) as command,
    ):
        client.wait_for_output()
        command.wait_for("generating")
        command.interrupt()
        command.wait_for("\x1b[?1049l")
        assert command.wait() == 130
