"""A daemon that the kernel kills for want of memory, in a control group with a limit."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnerd.client import ConnectionLost
from runnerd.launcher import ChildDied, launch

pytestmark = pytest.mark.anyio

PATIENCE_S = 10.0
ROOM_BYTES = 4 * 2**20
MOUNTS = {
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
USAGE = {"memory.limit_in_bytes": "memory.usage_in_bytes", "memory.max": "memory.current"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def limit() -> Iterator[Path]:
    """Make a group; give the file of its limit."""
    for mount, name in MOUNTS.items():
        group = mount / f"runnerd-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / name).exists():
                yield group / name
                return
        finally:
            remove(group)
    pytest.skip("no control groups can be made here")


def remove(group: Path) -> None:
    """Remove a group as soon as the kernel has forgotten its last process."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < deadline, (group / "cgroup.procs").read_text()
            time.sleep(0.01)  # no event tells of it
        else:
            return


async def test_a_kill_for_want_of_memory_is_told_from_others(limit: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho $$ > {limit.parent}/cgroup.procs\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    options = ["--engine=reference"]
    async with launch("layers=0", options=options, python=str(python)) as runner:
        await runner.ready()
        usage = int((limit.parent / USAGE[limit.name]).read_text())
        limit.write_text(str(usage + ROOM_BYTES))
        with pytest.raises(ConnectionLost) as caught:
            await runner.client.tokenize("x" * 3 * ROOM_BYTES)
    died = caught.value.__cause__
    assert isinstance(died, ChildDied)
    assert died.cause == "oom_killed"
    assert "memory ran out (SIGKILL)" in str(died)
