"""The shipped units under a real systemd of the tests' own, which systemd_lab.sh boots."""

import compileall
import json
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S

SOURCE = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("systemd_lab.sh")
PROGRAM = "/opt/runnerd/bin/runnerd"
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
BOOT_S = 60.0

# What the units allow to be run lies here: the interpreter may be in somebody's home folder.
BINDS = {
    "/opt/runnerd/python": sys.base_prefix,
    "/opt/runnerd/packages": sysconfig.get_path("purelib"),
}
START = f"""#!/bin/sh
export LD_LIBRARY_PATH=/opt/runnerd/python/lib
export PYTHONPATH=/opt/runnerd/lib:/opt/runnerd/packages
exec /opt/runnerd/python/bin/python{sys.version_info[0]}.{sys.version_info[1]} -P -m runnerd "$@"
"""

Setting = str | int | float | bool | list[str]


@dataclass(frozen=True, slots=True)
class Lab:
    """A booted systemd: `pid` is its process as we see it, `cgroups` hybrid or unified."""

    pid: int
    cgroups: str

    def path(self, inside: str) -> Path:
        """Return how we reach a file or a socket that is in there."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        """Write a file in there, and the folders above it."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def run(self, *command: str, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command beside that systemd; one that fails is an error unless it may."""
        done = subprocess.run(
            [*self._enter, *command],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BOOT_S,
        )
        assert may_fail or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
        return done

    def systemctl(self, *arguments: str, may_fail: bool = False) -> str:
        """Run systemctl; return what it says."""
        return self.run("systemctl", "--no-pager", *arguments, may_fail=may_fail).stdout

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return properties of a unit."""
        lines = self.systemctl("show", unit, f"--property={','.join(names)}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def journal(self, unit: str) -> list[dict[str, str]]:
        """Return what the journal has of a unit, and what systemd itself says of it."""
        self.run("journalctl", "--sync")
        lines = self.run("journalctl", "--all", "--output=json", f"--unit={unit}").stdout
        return [json.loads(line) for line in lines.splitlines()]

    @property
    def limits_memory(self) -> bool:
        """Whether MemoryMax= is of effect."""
        if self.cgroups == "hybrid":
            return self.path("/sys/fs/cgroup/memory").exists()
        return "memory" in self.path("/sys/fs/cgroup/cgroup.controllers").read_text()

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", *NAMESPACES, "--"]


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of the units, with settings and drop-ins of its own."""

    lab: Lab
    name: str

    @property
    def service(self) -> str:
        return f"runnerd@{self.name}.service"

    @property
    def socket(self) -> str:
        return f"runnerd@{self.name}.socket"

    @property
    def path(self) -> Path:
        """Where our own clients connect."""
        return self.lab.path(f"/run/runnerd/{self.name}.sock")

    def systemctl(self, verb: str, *options: str, may_fail: bool = False) -> str:
        """Have something done to the service; return what systemctl says."""
        return self.lab.systemctl(verb, *options, self.service, may_fail=may_fail)

    def listen(self) -> None:
        """Start the socket unit alone: the service comes with the first connection."""
        self.lab.systemctl("start", self.socket)

    def show(self, name: str) -> str:
        """Return a property of the service."""
        return self.lab.show(self.service, name)[name]

    def until(self, name: str, wanted: str) -> None:
        """Wait until a property of the service contains what is wanted."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.show(name):
            assert time.monotonic() < deadline, f"{name} is {self.show(name)}\n{self.messages()}"

    def set(self, **settings: Setting) -> None:
        """Write the settings file anew."""
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        self.lab.write(f"/etc/runnerd/{self.name}.toml", "".join(lines))

    def kill(self, signal: str) -> None:
        """Send the daemon a signal."""
        self.systemctl("kill", "--kill-whom=main", f"--signal={signal}")

    def messages(self) -> str:
        """Return all that the journal says of the service, as text."""
        entries = self.lab.journal(self.service)
        return "\n".join(str(entry.get("MESSAGE", "")) for entry in entries)


class Units:
    """Makes instances, and ends them all."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._made: list[Instance] = []

    def __call__(
        self, service: str = "", settings: Mapping[str, Setting] | None = None, socket: str = ""
    ) -> Instance:
        """Configure an instance, not started: lines for its sections [Service] and [Socket].

        It serves the reference engine unless the settings say otherwise.
        """
        instance = Instance(self._lab, f"t{next(_names)}")
        self._made.append(instance)
        instance.set(**{"engine": "reference", "model": "layers=0", **(settings or {})})
        for unit, section, lines in (
            (instance.service, "Service", f"RestartSec=100ms\n{service}"),
            (instance.socket, "Socket", socket),
        ):
            drop_in = f"/etc/systemd/system/{unit}.d/test.conf"
            self._lab.write(drop_in, f"[{section}]\n{lines}\n")
        self._lab.systemctl("daemon-reload")
        return instance

    def end(self) -> None:
        """Kill what still runs; print its journal, for whom a test has failed."""
        for each in self._made:
            units = (each.service, each.socket)
            print(each.messages())  # noqa: T201
            self._lab.systemctl("kill", "--signal=KILL", each.service, may_fail=True)
            self._lab.systemctl("stop", *units, may_fail=True)
            self._lab.systemctl("reset-failed", *units, may_fail=True)


_names = count(1)


@contextmanager
def booted() -> Iterator[Lab]:
    """Boot for a `with` block, with runnerd installed; skip where this machine cannot do it."""
    checked = subprocess.run(["bash", SCRIPT, "check"], check=False, capture_output=True)
    if checked.returncode:
        reason = f"no systemd of our own: {checked.stdout.decode().strip()}"
        assert "RUNNERD_REQUIRE_SYSTEMD" not in os.environ, reason + checked.stderr.decode()
        pytest.skip(reason)
    process = subprocess.Popen(
        ["bash", SCRIPT, "boot", *(f"{source}:{target}" for target, source in BINDS.items())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us: we end it in good order
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], BOOT_S)[0], "no systemd within a minute"
        pid, cgroups = process.stdout.readline().split()
        lab = Lab(int(pid), cgroups.decode())
        _install(lab)
        yield lab
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()


def _install(lab: Lab) -> None:
    subprocess.run(
        ["make", "--silent", "install", f"DESTDIR={lab.path('')}"],
        check=True,
        cwd=SOURCE,
        stdout=subprocess.DEVNULL,
    )
    lib = lab.path("/opt/runnerd/lib")
    for package in (SOURCE / "runnerd", SOURCE / "protocol" / "runnerd_protocol"):
        shutil.copytree(package, lib / package.name)
    compileall.compile_dir(lib, quiet=1)  # as an installer would: a start is to be quick
    lab.write(PROGRAM, START, 0o755)
    lab.run("systemd-sysusers")
    lab.run("systemd-tmpfiles", "--create", "runnerd.conf")
