"""Looks at a daemon that has nothing to do: what it holds, and whether it says what it said."""

from collections.abc import Sequence

import anyio
import psutil
from msgspec import Struct

from loadtest.growth import Holding, holding
from loadtest.soak.daemon_log import DaemonLog
from runnerd.client import Client
from runnerd_protocol.messages import Status

PROBE, PROBE_TOKENS = "Here is a list of words: apple, river, stone, apple, river,", 16
REST_S = 30.0  # for what was left to end, and for connections to be closed
LOOK_S = 0.05  # between statuses meanwhile, the protocol's least


class Look(Struct, frozen=True):
    """What was seen after `holding.n_requests`.

    `is_at_rest`: all slots were free, nobody waited, no connection but ours was left. `text` is
    what it says to the probe, alone and with nothing in the cache.
    """

    holding: Holding
    is_at_rest: bool
    n_slots_busy: int
    n_waiting: int
    n_connections: int
    n_cells_used: int
    n_zombies: int
    n_tasks: int
    text: str


async def look_at(client: Client, log: DaemonLog, pid: int, n_requests: int) -> Look:
    """Wait until the daemon has come to rest, and look at it."""
    await _until_at_rest(client)
    text = await _say_probe(client, n_requests)
    status = await _until_at_rest(client)
    return Look(
        holding=holding(pid, n_requests),
        is_at_rest=_is_at_rest(status),
        n_slots_busy=status.n_slots - status.n_slots_free,
        n_waiting=status.n_waiting,
        n_connections=status.n_connections,
        n_cells_used=status.n_cells_used,
        n_zombies=n_zombies_of(pid),
        n_tasks=await log.n_tasks(pid),
        text=text,
    )


def n_zombies_of(pid: int) -> int:
    """Return how many of a process's children have ended and were not waited for."""
    children = psutil.Process(pid).children(recursive=True)
    return sum(_is_zombie(child) for child in children)


def n_differing(looks: Sequence[Look]) -> int:
    """Return how many looks have another text than the first."""
    return sum(look.text != looks[0].text for look in looks)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_at_rest(status: Status) -> bool:
    is_idle = status.n_slots_free == status.n_slots and status.n_waiting == 0
    return is_idle and status.n_connections == 1


async def _until_at_rest(client: Client) -> Status:
    """Return the first status at rest, or the last one when it takes too long."""
    status = await client.status()
    with anyio.move_on_after(REST_S):
        async with client.subscribe(LOOK_S) as statuses:
            async for status in statuses:
                if _is_at_rest(status):
                    break
    return status


async def _say_probe(client: Client, n_requests: int) -> str:
    """Ask in a scope of its own: what is cached changes the last bits of what is computed."""
    completion = await client.complete(
        PROBE,
        max_tokens=PROBE_TOKENS,
        temperature=0.0,
        ignore_end=True,
        cache_scope=f"look {n_requests}",
    )
    return completion.text
