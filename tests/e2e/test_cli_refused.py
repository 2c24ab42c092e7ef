"""Commands whose connection is turned away, by a daemon that says why."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import ProtocolError
from tests.others import needs_root
from tests.processes import run, running

REFUSAL = ProtocolError("not_allowed", "user 7 may not use this daemon: join the group")


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Have answers ready for whoever comes: each is turned away, as the daemon does it."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        child = os.fork()
        if not child:
            while True:
                with listening.accept()[0] as sock:
                    sock.send(encode_frame(REFUSAL))
        try:
            yield
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize("command", [["status"], ["generate", "hi"]])
def test_a_command_that_is_turned_away_says_why_and_fails(
    tmp_path: Path, command: list[str]
) -> None:
    with refusing(tmp_path / "socket"):
        ended = run(*command, f"--socket={tmp_path}/socket")
    assert ended.code == 69, ended
    assert "not_allowed: user 7 may not use this daemon: join the group" in ended.err
    assert "Traceback" not in ended.err


def test_top_shows_that_it_is_turned_away(tmp_path: Path) -> None:
    with refusing(tmp_path / "socket"):
        with running("top", f"--socket={tmp_path}/socket", on_terminal=True, columns=140) as top:
            top.wait_for("not_allowed")
            top.interrupt()
            assert "Traceback" not in top.rest()
            assert top.wait() == 130


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv to give up rights with")
def test_a_command_that_may_not_even_open_the_socket_says_who_may(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        os.chown(path, 7, 7)
        path.chmod(0o600)
        rights = "--bounding-set=-dac_override,-dac_read_search"
        command = ["setpriv", rights, sys.executable, "-m", "runnerd", "status"]
        asked = [*command, f"--socket={path}"]
        ended = subprocess.run(asked, check=False, capture_output=True, text=True)
    assert ended.returncode == 69, ended
    assert f"may not connect to {path} (Permission denied): its owner and group" in ended.stderr
