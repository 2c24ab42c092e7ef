"""Wait until a daemon says of itself what a test waits for."""

from collections.abc import Callable

import anyio

from runnerd.client import Client
from runnerd_protocol.messages import Status

INTERVAL_S = 0.05  # of figures; a change of state is told at once
WITHIN_S = 60.0  # for loads too, on a machine that has other things to do


async def until_status(client: Client, holds: Callable[[Status], bool]) -> Status:
    """Subscribe until a status is such; return it."""
    with anyio.fail_after(WITHIN_S):
        async with client.subscribe(INTERVAL_S) as statuses:
            async for status in statuses:
                if holds(status):
                    return status
    raise AssertionError(f"the daemon has ended before, after {status}")


def is_stalled(status: Status) -> bool:
    """Whether a step or an encode has taken too long so far."""
    return status.state == "stalled"


def is_idle(status: Status) -> bool:
    """Whether there is nothing that it works for."""
    return status.n_slots_free == status.n_slots and not status.n_waiting


def is_ours_alone(status: Status) -> bool:
    """Whether it has taken leave of all other clients and their requests."""
    return status.n_connections == 1 and is_idle(status)
