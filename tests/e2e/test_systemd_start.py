"""Under a real systemd: how a daemon starts, and how it fails to."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from runnerd.blocking import BlockingClient
from runnerd.streams import CannotConnect, ClientError
from tests.e2e.systemd_lab import PROGRAM, Instance, Lab, Setting, Units
from tests.processes import needs_model

STRANGER = "4000"  # an id that nothing and nobody has


def says_something(instance: Instance) -> str:
    with BlockingClient(instance.path) as client:
        return client.complete("Once", max_tokens=8, temperature=0.0).text


def test_the_first_connection_starts_the_daemon_and_is_served(units: Units) -> None:
    instance = units()
    instance.listen()
    assert instance.show("ActiveState") == "inactive"
    assert len(says_something(instance)) == 8
    assert instance.show("ActiveState") == "active"
    assert instance.show("StatusText").startswith("serving reference")


def test_who_connects_in_a_load_waits_for_its_end_and_who_starts_it_too(units: Units) -> None:
    instance = units(settings={"model": "layers=0,load_ms=600"})
    with ThreadPoolExecutor() as pool:
        instance.listen()
        answer = pool.submit(says_something, instance)
        instance.until("StatusText", "loading: ")
        assert instance.show("ActiveState") == "activating"
        instance.systemctl("start")
        with BlockingClient(instance.path) as client:
            assert client.status().state == "ready"
        assert len(answer.result()) == 8
    assert instance.messages().count("Started runnerd@") == 1


def test_a_load_that_moves_outlives_the_start_limit(units: Units) -> None:
    instance = units("TimeoutStartSec=3", {"model": "layers=0,load_ms=3200", "load-timeout": 2})
    instance.systemctl("start")
    assert instance.show("NRestarts") == "0"
    assert len(says_something(instance)) == 8


def test_a_load_that_is_stuck_is_ended_and_the_journal_has_its_phase(units: Units) -> None:
    settings: dict[str, Setting] = {"model": "layers=0,load_ms=3600000", "load-timeout": 1}
    instance = units("TimeoutStartSec=3\nTimeoutStopSec=1\nRestart=no", settings)
    instance.systemctl("start", may_fail=True)
    assert instance.show("Result") == "timeout"
    messages = instance.messages()
    assert "start operation timed out" in messages
    [told] = [line for line in messages.splitlines() if "daemon.draining" in line]
    assert "open" in told


@pytest.mark.parametrize(
    ("settings", "status", "reason"),
    [
        ({"engine": "llama", "model": "/var/lib/runnerd/wrong.gguf"}, 65, "wrong.gguf"),
        pytest.param(
            {"engine": "llama", "model": "/var/lib/runnerd/none.gguf"},
            66,
            "none.gguf",
            marks=pytest.mark.soak,
        ),
        ({"slotz": 4}, 78, "slotz"),
    ],
)
def test_what_the_next_start_would_not_cure_is_not_started_again(
    lab: Lab, units: Units, settings: dict[str, Setting], status: int, reason: str
) -> None:
    if settings.get("engine") == "llama":
        pytest.importorskip("llama_cpp")
    lab.write("/var/lib/runnerd/wrong.gguf", "this is no model")
    instance = units(settings=settings)
    instance.systemctl("start", may_fail=True)
    assert instance.show("ActiveState") == "failed"
    assert instance.show("ExecMainStatus") == str(status)
    assert instance.show("NRestarts") == "0"
    assert reason in instance.messages()
    if status != 78:  # which is found before there is a daemon that could tell
        assert reason in instance.show("StatusText")


def test_a_client_is_refused_where_no_start_succeeds_until_the_cause_is_removed(
    lab: Lab, units: Units
) -> None:
    instance = units("[Unit]\nStartLimitBurst=2", {"slots": 0})
    instance.listen()
    with pytest.raises(ClientError):
        says_something(instance)
    assert lab.show(instance.socket, "ActiveState")["ActiveState"] == "failed"
    with pytest.raises(CannotConnect):
        says_something(instance)
    instance.set(engine="reference", model="layers=0")
    lab.systemctl("reset-failed", instance.service, instance.socket)
    instance.listen()
    assert len(says_something(instance)) == 8


def ask_as(lab: Lab, instance: Instance, group: str) -> tuple[int, str]:
    """Ask for the status as somebody who is nobody, but for a group."""
    who = (f"--reuid={STRANGER}", f"--regid={STRANGER}", f"--groups={group}")
    where = f"/run/runnerd/{instance.name}.sock"
    done = lab.run("setpriv", *who, PROGRAM, "status", "--socket", where, may_fail=True)
    return done.returncode, done.stdout


def test_members_of_the_group_get_in_and_others_do_not_reach_the_door(
    lab: Lab, units: Units
) -> None:
    instance = units()
    instance.listen()
    file = instance.path.stat()
    group = lab.run("getent", "group", "runnerd").stdout.split(":")[2]
    assert (stat.S_IMODE(file.st_mode), file.st_uid, str(file.st_gid)) == (0o660, 0, group)
    code, told = ask_as(lab, instance, group)
    assert code == 0, told
    code, told = ask_as(lab, instance, STRANGER)
    assert code != 0
    assert "Permission denied" in told


def test_the_daemon_refuses_whom_a_door_left_open_lets_in(lab: Lab, units: Units) -> None:
    instance = units(socket="SocketMode=0666")
    instance.listen()
    code, told = ask_as(lab, instance, STRANGER)
    assert code != 0
    assert "not_allowed" in told or "not allowed" in told
    assert "client.not_allowed" in instance.messages()


def test_who_is_named_gets_in_where_the_unit_tells_users_apart(lab: Lab, units: Units) -> None:
    instance = units("PrivateUsers=no", {"allow-users": [STRANGER]}, "SocketMode=0666")
    instance.listen()
    code, told = ask_as(lab, instance, STRANGER)
    assert code == 0, told


def test_the_socket_file_outlives_the_daemons_and_goes_with_its_unit(
    lab: Lab, units: Units
) -> None:
    instance = units()
    instance.listen()
    inode = instance.path.stat().st_ino
    for verb in ("restart", "stop"):  # the first one starts it
        instance.systemctl(verb)
        assert instance.path.stat().st_ino == inode
    assert len(says_something(instance)) == 8
    lab.systemctl("stop", instance.socket)
    assert not instance.path.exists()
    assert instance.show("ActiveState") != "active"


@pytest.mark.llama
@needs_model
def test_the_hardened_unit_runs_a_real_model_and_plans_another(units: Units) -> None:
    instance = units(
        settings={"engine": "llama", "model": "smollm2", "threads": 1, "ctx": 256, "slots": 2}
    )
    instance.listen()
    with BlockingClient(instance.path) as client:
        told = client.complete("The capital of France is", max_tokens=8, temperature=0.0)
        assert "Paris" in told.text
        assert client.plan(n_ctx=512, n_slots=4) is not None
    assert instance.show("NRestarts") == "0"
    assert instance.show("PrivateUsers") == "yes"
