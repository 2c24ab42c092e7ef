"""What systemd hands over, and what is made of it if that is not as it should be."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.systemd.environment import VARIABLES, ServiceEnvironment, take_environment
from tests.service_manager import BECOME, listening_at

US = str(os.getpid())

# Takes what it is given, after what the arguments change; says what it is, and what a child has.
TAKE = """
import os, subprocess, sys
from runnerd.errors import ConfigError
from runnerd.systemd.environment import take_environment

for change in sys.argv[1:]:
    name, _, value = change.partition("=")
    os.environ[name] = value
    if not value:
        del os.environ[name]
try:
    service = take_environment(is_child=False)
except ConfigError as err:
    sys.exit(f"ConfigError: {err}")
for each in service.sockets:
    sock = each.socket
    print(each.name, sock.fileno(), sock.get_inheritable(), sock.getblocking())
print(*service.warnings, sep="\\n")
subprocess.run([sys.executable, "-ISc", "import os\\ngiven = 'LISTEN', 'NOTIFY', 'WATCHDOG'\\n"
    "for fd in range(3, 9):\\n"
    "    try: print('leaked', fd, os.fstat(fd))\\n"
    "    except OSError: pass\\n"
    "print([name for name in os.environ if name.partition('_')[0] in given])"],
    close_fds=False, check=True)
"""


def take(sockets: list[socket.socket], *changes: str, script: str = TAKE) -> tuple[str, str]:
    """Return what a process that is handed the sockets makes of it: its stdout and stderr."""
    fds = [each.fileno() for each in sockets]
    become = [sys.executable, "-ISc", BECOME, str(len(fds)), *map(str, fds)]
    done = subprocess.run(
        [*become, sys.executable, "-c", script, *changes],
        check=False,
        capture_output=True,
        pass_fds=fds,
        text=True,
        timeout=30,
    )
    return done.stdout, done.stderr


def test_sockets_are_taken_with_their_names_and_kept_from_children(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(listening_at(tmp_path / name)) for name in "ab"]
        other = ("NOTIFY_SOCKET=/run/notify", "WATCHDOG_USEC=3000000")
        out, err = take(sockets, "LISTEN_FDNAMES=api:admin", *other)
    assert err == ""
    assert out.splitlines() == ["api 3 False False", "admin 4 False False", "", "[]"]


def test_a_socket_without_a_name_is_unknown(tmp_path: Path) -> None:
    with listening_at(tmp_path / "a") as sock:
        assert take([sock])[0].splitlines()[0] == "unknown 3 False False"


NONSENSE = {
    "LISTEN_PID=x": "LISTEN_PID='x' is not",
    "LISTEN_PID=-1": "LISTEN_PID='-1' is not",
    "LISTEN_FDS=x": "LISTEN_FDS='x' is not",
    "LISTEN_FDS=-1": "LISTEN_FDS='-1' is not",
    "LISTEN_FDS=": "LISTEN_FDS='' is not",
    "LISTEN_FDS=1000000000": "LISTEN_FDS='1000000000' is not",
    "LISTEN_FDS=2": "descriptor 4 ('unknown') of the service manager is not a socket",
    "LISTEN_FDNAMES=a:b": "LISTEN_FDNAMES has 2 names for 1 sockets",
}

# Takes the same with one change after another, each in a process of its own; says what is wrong.
TAKE_EACH = """
import os, sys
from runnerd.errors import ConfigError
from runnerd.systemd.environment import take_environment

for change in sys.argv[1:]:
    if not os.fork():
        os.environ["LISTEN_PID"] = str(os.getpid())
        name, _, value = change.partition("=")
        os.environ[name] = value
        if not value:
            del os.environ[name]
        try:
            print(take_environment(is_child=False), flush=True)
        except ConfigError as err:
            print(err, flush=True)
        os._exit(0)
    os.wait()
"""


def test_sockets_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with listening_at(tmp_path / "a") as sock:
        out, err = take([sock], *NONSENSE, script=TAKE_EACH)
    assert err == ""
    for said, fault in zip(out.splitlines(), NONSENSE.values(), strict=True):
        assert said.startswith(fault)


def test_where_no_sockets_are_passed_their_names_are_no_fault(tmp_path: Path) -> None:
    with listening_at(tmp_path / "a") as sock:
        out, err = take([sock], "LISTEN_FDS=0", "LISTEN_FDNAMES=a")
    assert (out.splitlines()[0], err) == ("", "")


@pytest.mark.parametrize("changes", [["LISTEN_PID=1"], ["LISTEN_PID="]])
def test_sockets_for_somebody_else_are_left_alone_with_a_warning(
    tmp_path: Path, changes: list[str]
) -> None:
    with listening_at(tmp_path / "a") as sock:
        out, err = take([sock], *changes)
    assert err == ""
    assert "not us" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("tcp", "descriptor 3 ('api') of the service manager is no unix socket but AF_INET"),
        ("datagrams", "('api') of the service manager is no stream socket but SOCK_DGRAM"),
        ("bound", "does not listen"),
        ("connected", "does not listen"),
    ],
)
def test_a_socket_of_another_kind_is_named(tmp_path: Path, kind: str, fault: str) -> None:
    with ExitStack() as stack:
        match kind:
            case "tcp":
                sock = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            case "datagrams":
                sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            case "bound":
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.bind(str(tmp_path / "a"))
            case _:
                sock, other = socket.socketpair()
                stack.enter_context(sock)
                stack.enter_context(other)
        err = take([sock], "LISTEN_FDNAMES=api")[1]
    assert fault in err


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_outside_a_service_there_is_nothing(environment: pytest.MonkeyPatch) -> None:
    assert take_environment(is_child=False) == ServiceEnvironment()


def test_a_child_takes_nothing_and_leaves_nothing_behind(environment: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        environment.setenv(name, US)
    assert take_environment(is_child=True) == ServiceEnvironment()
    assert not set(VARIABLES) & set(os.environ)


@pytest.mark.parametrize(
    ("address", "taken"),
    [("/run/notify", "/run/notify"), ("@name", "@name"), ("", ""), ("@", ""), ("vsock:1:2", "")],
)
def test_states_are_told_to_paths_and_abstract_names(
    environment: pytest.MonkeyPatch, address: str, taken: str
) -> None:
    environment.setenv("NOTIFY_SOCKET", address)
    service = take_environment(is_child=False)
    assert service.notify_address == taken
    assert bool(service.warnings) == (address not in (taken, ""))
    assert "NOTIFY_SOCKET" not in os.environ


@pytest.mark.parametrize(
    ("usec", "pid", "period_s", "warns"),
    [
        (None, None, 0.0, False),
        ("30000000", "ours", 30.0, False),
        ("30000000", None, 30.0, False),
        ("30000000", "1", 0.0, False),
        ("30000000", "me", 0.0, True),
        ("0", "ours", 0.0, True),
        ("1", "ours", 1e-6, False),
        (str(2**63), "ours", 2**63 / 1e6, False),
        (str(2**64 - 1), "ours", 0.0, False),
        (str(2**64), "ours", 0.0, True),
        ("-1", "ours", 0.0, True),
        ("٣", "ours", 0.0, True),
        ("9" * 5000, "ours", 0.0, True),
        ("3s", "ours", 0.0, True),
    ],
)
def test_pings_are_due_as_often_as_it_is_said_to_us(
    environment: pytest.MonkeyPatch,
    usec: str | None,
    pid: str | None,
    period_s: float,
    warns: bool,
) -> None:
    for name, value in [("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)]:
        if value is not None:
            environment.setenv(name, US if value == "ours" else value)
    service = take_environment(is_child=False)
    assert (service.watchdog_s, bool(service.warnings)) == (period_s, warns)


@given(st.dictionaries(st.sampled_from(VARIABLES[3:]), st.text(st.characters(codec="utf-8"))))
def test_whatever_is_said_of_states_and_pings_no_start_fails_for_it(said: dict[str, str]) -> None:
    clean = {name: text.replace("\0", "") for name, text in said.items()}
    with pytest.MonkeyPatch.context() as environment:
        for name in VARIABLES:
            environment.delenv(name, raising=False)
        for name, text in clean.items():
            environment.setenv(name, text)
        service = take_environment(is_child=False)
        assert service.watchdog_s >= 0.0
        assert not set(VARIABLES) & set(os.environ)
