import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnerd.errors import ConfigError
from runnerd.listener import AddressInUse, bind_unix


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sock"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    """A living listener at the path that is not runnerd."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        yield listener


def is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_a_bound_socket_listens_and_does_not_block(path: Path) -> None:
    with bind_unix(path) as bound:
        assert bound.path == path
        assert not bound.socket.getblocking()
        assert is_served(path)


def test_a_path_may_be_given_as_text(path: Path) -> None:
    with bind_unix(str(path)):
        assert is_served(path)


def test_a_relative_path_is_one_of_the_working_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with bind_unix(path.name):
        assert is_served(path)
    assert os.listdir(path.parent) == []


def test_closing_leaves_nothing_behind(path: Path) -> None:
    bound = bind_unix(path)
    bound.close()
    bound.close()
    assert not bound.still_ours()
    assert os.listdir(path.parent) == []
    assert bound.socket.fileno() == -1


def test_a_path_can_be_bound_again_after_closing(path: Path) -> None:
    bind_unix(path).close()
    with bind_unix(path):
        assert is_served(path)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_file_has_the_mode_asked_for_whatever_the_umask(path: Path, mode: int) -> None:
    umask = os.umask(0o027)
    try:
        with bind_unix(path, mode):
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert os.umask(0o027) == 0o027
    finally:
        os.umask(umask)


def test_the_lock_file_is_for_its_owner_only(path: Path) -> None:
    with bind_unix(path, 0o666):
        assert stat.S_IMODE(path.with_name("sock.lock").stat().st_mode) == 0o600


def test_a_stale_socket_is_replaced(path: Path) -> None:
    leave_stale_socket(path)
    with bind_unix(path):
        assert is_served(path)


def test_a_lock_file_that_nobody_holds_is_taken_over(path: Path) -> None:
    path.with_name("sock.lock").touch()
    bind_unix(path).close()
    assert os.listdir(path.parent) == []


def test_a_living_instance_keeps_its_path(path: Path) -> None:
    with bind_unix(path) as living:
        with pytest.raises(AddressInUse, match=f"another runnerd serves {path}"):
            bind_unix(path)
        assert living.still_ours()
        assert is_served(path)


def test_an_instance_between_bind_and_listen_keeps_its_path(path: Path) -> None:
    with bind_unix(path) as living:
        path.unlink()
        leave_stale_socket(path)  # answers as one that does not listen yet
        inode = path.stat().st_ino
        with pytest.raises(AddressInUse):
            bind_unix(path)
        assert path.stat().st_ino == inode
        assert not living.still_ours()


def test_a_stranger_who_listens_keeps_the_path(path: Path, listener: socket.socket) -> None:
    with pytest.raises(AddressInUse, match=f"listens at {path}"):
        bind_unix(path)
    listener.accept()[0].close()
    assert is_served(path)
    assert os.listdir(path.parent) == ["sock"]


def test_a_stranger_with_a_full_backlog_keeps_the_path(path: Path, listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        with pytest.raises(AddressInUse):
            bind_unix(path)
    listener.accept()[0].close()
    assert is_served(path)


def test_a_datagram_socket_in_use_keeps_the_path(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(AddressInUse):
            bind_unix(path)
    assert path.is_socket()


def test_a_regular_file_is_left_untouched(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(ConfigError, match=f"{path} exists and is not a socket"):
        bind_unix(path)
    assert path.read_text() == "mine"
    assert os.listdir(path.parent) == ["sock"]


def test_a_directory_is_left_untouched(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match="is not a socket"):
        bind_unix(path)
    assert path.is_dir()


def test_a_fifo_is_left_untouched(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a socket"):
        bind_unix(path)
    assert path.is_fifo()


@pytest.mark.parametrize("target", ["nothing", "stale"])
def test_a_link_is_left_untouched(path: Path, target: str) -> None:
    leave_stale_socket(path.with_name("stale"))
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="is not a socket"):
        bind_unix(path)
    assert path.is_symlink()
    assert path.with_name("stale").is_socket()


def test_a_link_in_the_place_of_the_lock_is_not_followed(path: Path) -> None:
    path.with_name("sock.lock").symlink_to("elsewhere")
    with pytest.raises(ConfigError, match=r"cannot open .*sock\.lock"):
        bind_unix(path)
    assert os.listdir(path.parent) == ["sock.lock"]


def test_a_fifo_in_the_place_of_the_lock_is_refused(path: Path) -> None:
    os.mkfifo(path.with_name("sock.lock"))
    with pytest.raises(ConfigError, match="is not a regular file"):
        bind_unix(path)


@pytest.mark.parametrize("empty", ["", Path()])
def test_an_empty_path_is_refused(empty: str | Path) -> None:
    with pytest.raises(ConfigError, match="empty"):
        bind_unix(empty)


def test_a_nul_in_the_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="NUL"):
        bind_unix("/tmp/a\0b")


def test_a_path_that_is_too_long_is_refused_with_the_numbers(tmp_path: Path) -> None:
    too_long = str(tmp_path / ("é" * 60))
    n_bytes = len(os.fsencode(too_long))
    with pytest.raises(ConfigError, match=f"{n_bytes} bytes.*107.*{re.escape(too_long)}"):
        bind_unix(too_long)


def test_the_longest_path_that_fits_is_bound(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path = path.with_name("x" * (107 - len(os.fsencode(tmp_path)) - 1))
    with bind_unix(path):
        assert is_served(path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"directory {tmp_path}/missing of"):
        bind_unix(tmp_path / "missing" / "sock")


def test_a_file_in_the_place_of_the_directory_is_named(path: Path) -> None:
    path.touch()
    with pytest.raises(ConfigError, match=f"directory {path} of"):
        bind_unix(path / "sock")


def test_a_directory_that_takes_no_files_is_refused_with_the_reason() -> None:
    # Not even root may create files here, which is what the tests may run as.
    with pytest.raises(ConfigError, match=r"cannot open /proc/runnerd\.sock\.lock: [A-Z]"):
        bind_unix("/proc/runnerd.sock")


def test_a_path_deleted_in_use_is_noticed(path: Path) -> None:
    with bind_unix(path) as bound:
        assert bound.still_ours()
        path.unlink()
        assert not bound.still_ours()


def test_the_old_instances_end_does_not_remove_the_new_ones_files(path: Path) -> None:
    old = bind_unix(path)
    path.unlink()
    path.with_name("sock.lock").unlink()
    with bind_unix(path) as new:
        old.close()
        assert new.still_ours()
        assert is_served(path)
        with pytest.raises(AddressInUse, match="another runnerd"):
            bind_unix(path)


RACE = """
import os, signal, socket, sys
from runnerd.listener import AddressInUse, bind_unix

path, n_rounds = sys.argv[1], int(sys.argv[2])

def contend(start, results):
    os.read(start, 1)
    try:
        bound = bind_unix(path)
    except AddressInUse:
        os.write(results, b'lost\\n')
        os._exit(0)
    os.write(results, b'%d\\n' % os.getpid())
    signal.pause()

for _ in range(n_rounds):
    start, go = os.pipe()
    answers, results = os.pipe()
    pids = []
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            contend(start, results)
        pids.append(pid)
    os.close(go)
    os.close(results)
    answer = os.fdopen(answers)
    lines = [answer.readline() for _ in range(20)]
    winners = [int(line) for line in lines if line != 'lost\\n']
    assert len(winners) == 1, lines
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    # Killed, it leaves a stale file for the next round.
    os.kill(winners[0], signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    answer.close()
    os.close(start)
    assert os.path.exists(path)
"""


CHURN = """
import os, sys
from runnerd.listener import AddressInUse, bind_unix

path = sys.argv[1]
n_served = 0
while n_served < int(sys.argv[2]):
    try:
        bound = bind_unix(path)
    except AddressInUse:
        continue
    os.close(os.open(path + '.held', os.O_CREAT | os.O_EXCL))
    assert bound.still_ours()
    os.unlink(path + '.held')
    bound.close()
    n_served += 1
"""


def test_of_twenty_starts_at_once_over_a_stale_file_one_survives(path: Path) -> None:
    leave_stale_socket(path)
    race = subprocess.run([sys.executable, "-c", RACE, path, "30"], timeout=60, check=False)
    assert race.returncode == 0  # of each round one was served, the others were refused


def test_instances_that_come_and_go_never_serve_at_the_same_time(path: Path) -> None:
    command = [sys.executable, "-c", CHURN, str(path), "200"]
    churners = [subprocess.Popen(command) for _ in range(4)]
    assert [churner.wait(timeout=60) for churner in churners] == [0, 0, 0, 0]
    assert os.listdir(path.parent) == []


def test_a_killed_instance_leaves_a_path_that_can_be_bound(path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from runnerd.listener import bind_unix\n"
        "bound = bind_unix(sys.argv[1])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, path], timeout=20, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.is_socket()
    with bind_unix(path):
        assert is_served(path)
