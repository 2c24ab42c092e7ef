"""The tests' own systemd leaves nothing behind, however its tests end."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.systemd_lab import SOURCE, Lab, booted
from tests.processes import PATIENCE_S

DOOMED = """
from tests.e2e.systemd_lab import booted
with booted() as lab:
    print(lab.pid, flush=True)
    input()
"""


def script_of(pid: int) -> int:
    """Return the process that has booted a systemd, and takes it down."""
    unshare = psutil.Process(pid).parent()
    assert unshare is not None
    return unshare.ppid()


def control_groups(script: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/runnerd-lab.{script}"))


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def test_a_failed_test_leaves_no_mount_process_or_control_group(lab: Lab) -> None:
    mounts_before = mounts()
    with pytest.raises(ZeroDivisionError):
        with booted() as other:
            script = script_of(other.pid)
            assert control_groups(script)
            assert other.run("cat", "/proc/1/comm").stdout == "systemd\n"
            raise ZeroDivisionError
    assert not psutil.pid_exists(other.pid)
    assert not control_groups(script)
    assert mounts() == mounts_before
    assert lab.run("cat", "/proc/1/comm").stdout == "systemd\n"


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_tests_that_are_killed_take_their_systemd_along(lab: Lab, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DOOMED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=SOURCE,
    ) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        script = script_of(pid)
        end = os.pidfd_open(script)
        tests.send_signal(number)
        tests.wait(PATIENCE_S)
    assert select.select([end], [], [], PATIENCE_S)[0]
    os.close(end)
    assert not psutil.pid_exists(pid)
    assert not control_groups(script)
