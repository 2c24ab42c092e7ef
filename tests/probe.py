"""The common probe: after whatever was done to a daemon's process, it is as it was before."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from runnerd.client import connect
from tests.daemon_process import DaemonProcess
from tests.statuses import is_ours_alone, until_status

N_TRIES = 5  # for an answer in time, on a machine that has other things to do
STATUS_S = 1.0
N_REFERENCE_TOKENS = 16
MEMORY_SHARE = 0.02  # of which its private memory may have grown
THREADS_S, ASK_S = 30.0, 0.5  # for idle worker threads to end: 10 s after their last work
HEAP_SHARE = 0.2  # where a crowd's sessions leave some in the heap, for the next crowd


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a daemon holds while the probe is its only client."""

    n_descriptors: int
    n_threads: int
    private_bytes: int
    text: str


@asynccontextmanager
async def probed(
    daemon: DaemonProcess, *, memory_share: float = MEMORY_SHARE
) -> AsyncIterator[Holdings]:
    """Assert at the end of the block that the daemon is as well as it was at its start.

    The process lives, a status is answered soon, a greedy request says what it said, all slots
    can be had at once, and nothing is held that was not held before. All clients of the block
    must have closed; what the daemon still does of them is waited for.
    """
    await _use_everything(daemon)
    before = await _holdings(daemon)
    yield before
    assert daemon.process.poll() is None, daemon.log
    assert await _answers_soon(daemon), f"no status within {STATUS_S} s"
    await _use_everything(daemon)
    after = await _holdings(daemon)
    seen = f"{before} before, {after} after"
    assert after.text == before.text, seen
    assert after.n_descriptors == before.n_descriptors, seen
    assert await _has_threads(daemon, before.n_threads), seen
    assert after.private_bytes <= before.private_bytes * (1 + memory_share), seen


def anonymous_bytes(pid: int) -> int:
    """Return a process's memory that is no file's, swapped out or not."""
    text = Path(f"/proc/{pid}/status").read_text()
    return sum(
        int(n_kib) * 1024 for n_kib in re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", text, re.M)
    )


async def _answers_soon(daemon: DaemonProcess) -> bool:
    for _ in range(N_TRIES):
        with anyio.move_on_after(STATUS_S):
            async with connect(daemon.path) as client:
                await client.status()
                return True
    return False


async def _has_threads(daemon: DaemonProcess, n_most: int) -> bool:
    """Return whether no more threads are left than there may be.

    How many work at once is chance; one that idles ends when others work after a while.
    """
    with anyio.move_on_after(THREADS_S):
        while daemon.facts.num_threads() > n_most:
            async with connect(daemon.path) as client:
                await client.complete("The probe asks", max_tokens=1)
            await anyio.sleep(ASK_S)  # what another process ends sets no event
    return daemon.facts.num_threads() <= n_most


async def _use_everything(daemon: DaemonProcess) -> None:
    """Have every slot at once, twice: what is only made at a first use is there then."""
    for _ in range(2):
        await daemon.has_all_slots()


async def _holdings(daemon: DaemonProcess) -> Holdings:
    async with connect(daemon.path) as client:
        await until_status(client, is_ours_alone)
        done = await client.complete(
            "The probe asks", max_tokens=N_REFERENCE_TOKENS, temperature=0.0
        )
        facts = daemon.facts
        return Holdings(facts.num_fds(), facts.num_threads(), anonymous_bytes(facts.pid), done.text)
