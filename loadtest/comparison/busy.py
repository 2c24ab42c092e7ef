"""Another process that wants a core, for as long as a measurement lasts."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import DEVNULL, PIPE

import anyio

# It says so once it runs, and ends when its parent has gone, whatever became of that.
_LOOP = """
import os, sys
core, parent = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
print(flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@asynccontextmanager
async def busy_core() -> AsyncIterator[int]:
    """Keep the last of our cores busy as long as the block lasts; yields the process's id."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", _LOOP, str(core), str(os.getpid())]
    async with await anyio.open_process(
        command, stdin=DEVNULL, stdout=PIPE, stderr=None
    ) as process:
        assert process.stdout is not None
        try:
            await process.stdout.receive()
            yield process.pid
        finally:
            process.kill()
