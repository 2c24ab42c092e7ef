"""What a daemon's process gives back to the system of large blocks that it has freed."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

# A daemon that ends as soon as it is ready. Then blocks are freed in a process that has freed a
# large one before, as after a first image: all but the last of them.
FREED = """
import os, re, signal, sys
from pathlib import Path
import structlog
from runnerd import supervisor
from runnerd.config import Config
from runnerd.engine.base import EngineConfig

def end_when_ready(logger, method, event):
    if event["event"] == "daemon.ready":
        os.kill(os.getpid(), signal.SIGTERM)
    raise structlog.DropEvent

def n_private_bytes():
    kib = re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
    return int(kib) * 1024

structlog.configure(processors=[end_when_ready])
config = Config(EngineConfig("layers=0", "reference", 2), Path(sys.argv[1]))
assert supervisor.start(config, supervisor.NO_SERVICE, "asyncio", list) == 0
first = b"x" * (24 * 2**20)
del first
before = n_private_bytes()
blocks = [bytes([number]) * (8 * 2**20) for number in range(1, 17)]
held = n_private_bytes()
del blocks[:-1]
print(held - before, n_private_bytes() - before)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="of another C library"
)
def test_a_daemon_gives_back_large_blocks_that_it_has_freed_between_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FREED, str(tmp_path / "socket")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    held, kept = map(int, run.stdout.split())
    assert held >= 16 * 8 * 2**20
    assert kept < 2 * 8 * 2**20
