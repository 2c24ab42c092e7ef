"""The units that ship: what is installed, how hardened it is, and whether its numbers fit ours."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from runnerd.commands.failure import USAGE
from runnerd.config import Config
from runnerd.ending import KILL_S
from runnerd.engine.base import EngineConfig
from runnerd.errors import BadModel, ConfigError, ModelMissing, OutOfMemory

PROJECT = Path(__file__).parents[2]
UNITS = PROJECT / "systemd"
DEFAULTS = Config(EngineConfig(model=""))
MAX_EXPOSURE_TENTHS = {"": 3, "gpu": 5}
# What the unit leaves open, each with a comment that says why. The names are systemd's.
LEFT_OPEN = {
    "DeviceAllow",
    "ProcSubset",
    "RestrictAddressFamilies_AF_UNIX",
    "RootDirectoryOrRootImage",
    "SystemCallFilter_resources",
}
NEEDED = ("systemd-analyze", "kill")  # the other is what the unit reloads with: package procps
MISSING = [name for name in NEEDED if shutil.which(name) is None]
needs_systemd = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        cwd=PROJECT,
        env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def settings(unit: str) -> dict[str, list[str]]:
    """Return the options of a unit, and every value that each is given."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / unit).read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def seconds(name: str) -> int:
    (value,) = settings("runnerd@.service")[name]
    return int(value)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make install` into a folder, for a program that is there."""
    root = tmp_path_factory.mktemp("root")
    program = root / "opt/runnerd"
    (program / "bin").mkdir(parents=True)
    (program / "bin/runnerd").touch(0o755)
    ended = run("make", "-s", "install", f"DESTDIR={root}", "PREFIX=/usr", f"PROGRAM={program}")
    assert (ended.returncode, ended.stderr) == (0, "")
    return root


def units(installed: Path, folder: Path, drop_ins: Sequence[str] = ()) -> Path:
    """Copy the installed units, and some of the drop-ins, to a folder of their own."""
    shutil.copytree(installed / "usr/lib/systemd/system", folder)
    (folder / "runnerd@.service.d").mkdir()
    for name in drop_ins:
        shutil.copy(UNITS / "drop-ins" / f"{name}.conf", folder / "runnerd@.service.d")
    return folder


# --- what is installed ---------------------------------------------------------------------


def test_make_install_puts_each_file_where_it_is_looked_for(installed: Path) -> None:
    files = {
        str(path.relative_to(installed)): path.stat().st_mode & 0o777
        for path in (installed / "usr").rglob("*")
        if path.is_file()
    }
    doc = "usr/share/doc/runnerd"
    drop_ins = [f"{doc}/drop-ins/{path.name}" for path in (UNITS / "drop-ins").iterdir()]
    assert files == dict.fromkeys(
        [
            "usr/lib/systemd/system/runnerd@.service",
            "usr/lib/systemd/system/runnerd@.socket",
            "usr/lib/sysusers.d/runnerd.conf",
            "usr/lib/tmpfiles.d/runnerd.conf",
            f"{doc}/README.md",
            f"{doc}/example.toml",
            *drop_ins,
        ],
        0o644,
    )
    assert drop_ins


def test_the_installed_unit_starts_the_program_where_it_was_put(installed: Path) -> None:
    text = (installed / "usr/lib/systemd/system/runnerd@.service").read_text()
    program = installed / "opt/runnerd"
    assert f"\nExecStart={program}/bin/runnerd serve --config /etc/runnerd/%i.toml\n" in text
    assert re.search(rf"^ExecPaths=.* {program}$", text, re.MULTILINE)


def test_a_program_in_a_home_folder_is_refused() -> None:
    command = 'import sys; sys.base_prefix = "/home/me/python"; exec(sys.argv[2])'
    ended = run("make", "install-program", f"PYTHON=python3 -c '{command}'", "PROGRAM=/no/such")
    assert ended.returncode != 0
    assert "the service could not read /home/me/python: give another PYTHON=" in ended.stderr


@needs_systemd
@needs_root
def test_the_snippets_make_the_user_and_the_folders(installed: Path, tmp_path: Path) -> None:
    lib = installed / "usr/lib"
    (tmp_path / "etc").mkdir()
    (tmp_path / "var/lib").mkdir(parents=True)
    made = run("systemd-sysusers", f"--root={tmp_path}", lib / "sysusers.d/runnerd.conf")
    assert made.returncode == 0, made.stderr
    *_, gid = re.findall(r"^runnerd:.*?:(\d+):", (tmp_path / "etc/group").read_text(), re.MULTILINE)
    made = run(
        "systemd-tmpfiles", "--create", f"--root={tmp_path}", lib / "tmpfiles.d/runnerd.conf"
    )
    assert made.returncode == 0, made.stderr
    for folder in ("etc/runnerd", "var/lib/runnerd"):
        found = (tmp_path / folder).stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o750, 0, int(gid))


# --- what systemd says of it ---------------------------------------------------------------


@needs_systemd
@pytest.mark.parametrize(
    ("drop_ins", "since"),
    [((), 0), (("gpu", "limits"), 0), (("reload-253",), 253), (("backoff-254",), 254)],
)
def test_systemd_has_nothing_to_say_against_the_units(
    installed: Path, tmp_path: Path, drop_ins: tuple[str, ...], since: int
) -> None:
    version = int(run("systemd-analyze", "--version").stdout.split()[1])
    if version < since:
        pytest.skip(f"systemd {version} does not know these options, {since} does")
    folder = units(installed, tmp_path / "units", drop_ins)
    ended = run(
        *("systemd-analyze", "verify", "--recursive-errors=no", "--man=no"),
        *(folder / "runnerd@x.service", folder / "runnerd@x.socket"),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@needs_systemd
@pytest.mark.parametrize("drop_in", MAX_EXPOSURE_TENTHS)
def test_the_service_is_hardened(installed: Path, tmp_path: Path, drop_in: str) -> None:
    folder = units(installed, tmp_path / "units", [drop_in] if drop_in else [])
    ended = run(
        *("systemd-analyze", "security", "--offline=true", "--no-pager"),
        f"--threshold={MAX_EXPOSURE_TENTHS[drop_in]}",
        folder / "runnerd@.service",
    )
    assert ended.returncode == 0, ended.stdout[-200:]


@needs_systemd
def test_nothing_is_open_but_what_the_unit_explains(installed: Path, tmp_path: Path) -> None:
    folder = units(installed, tmp_path / "units")
    ended = run(
        *("systemd-analyze", "security", "--offline=true", "--no-pager", "--json=short"),
        folder / "runnerd@.service",
    )
    checks = json.loads(ended.stdout)
    is_open = {check["json_field"] for check in checks if float(check["exposure"] or 0)}
    assert len(checks) > 50
    assert is_open <= LEFT_OPEN


# --- whether its numbers fit ours ----------------------------------------------------------


def test_what_cannot_get_better_is_not_started_again() -> None:
    (statuses,) = settings("runnerd@.service")["RestartPreventExitStatus"]
    never = {USAGE, BadModel.exit_code, ModelMissing.exit_code, ConfigError.exit_code}
    assert {int(each) for each in statuses.split()} == never
    assert OutOfMemory.exit_code not in never


def test_a_daemon_that_keeps_crashing_never_reaches_the_start_limit() -> None:
    # Its clients would be refused from then on: the limit is for what is not started again.
    assert seconds("RestartSec") * seconds("StartLimitBurst") > seconds("StartLimitIntervalSec")


def test_a_stop_leaves_time_for_the_drain_and_the_last_step() -> None:
    assert seconds("TimeoutStopSec") > DEFAULTS.drain_s + KILL_S


def test_the_watchdog_is_on_and_its_sum_is_documented() -> None:
    text = (UNITS / "README.md").read_text()
    assert seconds("WatchdogSec") > 0
    assert f"{DEFAULTS.step_timeout_s + seconds('WatchdogSec'):g} s" in text


def test_the_socket_is_for_the_group() -> None:
    socket = settings("runnerd@.socket")
    assert (socket["SocketGroup"], socket["SocketMode"]) == (["runnerd"], ["0660"])
    assert socket["FileDescriptorName"] == ["api"]


def test_all_clients_of_a_full_daemon_can_wait_for_its_successor() -> None:
    (backlog,) = settings("runnerd@.socket")["Backlog"]
    assert int(backlog) >= DEFAULTS.max_connections


def test_the_readme_names_every_drop_in() -> None:
    text = (UNITS / "README.md").read_text()
    for path in (UNITS / "drop-ins").iterdir():
        assert f"drop-ins/{path.name}" in text
