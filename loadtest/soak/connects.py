"""Connections that come and go: with a word, without one, or amid one."""

from pathlib import Path
from random import Random
from typing import Literal, get_args

import anyio

from loadtest.soak.wire import wire_to
from runnerd_protocol.messages import GetStatus

N_AT_ONCE = 8
PATIENCE_S = 30.0  # for the daemon to answer, and to hang up

Way = Literal["silent", "hello", "half a hello", "unread", "asked", "half-closed"]
WAYS: tuple[Way, ...] = get_args(Way)


async def come_and_go(path: Path, seed: int, n_connections: int) -> None:
    """Connect to the daemon at a path and leave, so many times, some at once.

    Raises:
        RemoteProtocolError: a status that was asked for has not come.
        TimeoutError: it has not come in time.
    """
    rng = Random(seed)
    ways = iter([rng.choice(WAYS) for _ in range(n_connections)])

    async def visit() -> None:
        for way in ways:
            with anyio.fail_after(PATIENCE_S):
                await _visit(path, way)

    async with anyio.create_task_group() as tasks:
        for _ in range(N_AT_ONCE):
            tasks.start_soon(visit)


async def _visit(path: Path, way: Way) -> None:
    async with wire_to(path) as wire:
        if way == "silent":
            return
        await wire.greet(is_half=way == "half a hello")
        if way == "unread":
            await wire.until_unread()
        if way in ("asked", "half-closed"):
            request_id = await wire.ask(GetStatus(0))
            if way == "half-closed":
                wire.say_no_more()
                await wire.until_closed()
                return
            while not wire.has_ended(request_id):
                await wire.next(is_slow=False)
