"""A whole daemon on the reference engine, and up to three clients that do anything.

A script's acts are those of the clients. In the end those that can still speak take back what
they have asked, and whatever is owed must come; then the daemon must be as it was before, and
have logged no error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Literal

import anyio
from anyio.from_thread import start_blocking_portal
from structlog.testing import capture_logs

from runnerd.config import ImageLimits, SessionLimits
from tests.daemon import Daemon, running_daemon
from tests.fuzz.mutator import N_CONNECTIONS
from tests.fuzz.peer import Peer
from tests.fuzz.script import parse

PROBE_EVERY = 8  # scripts: it takes longer than one of them
HOUR_S = 3600.0  # no connection is to be cut off because the machine is slow
LIMITS = SessionLimits(
    max_frame_bytes=2**17,
    max_requests=6,
    intake_bytes=2**16,
    outbox_bytes=2**10,
    handshake_timeout_s=HOUR_S,
    frame_timeout_s=HOUR_S,
    media_timeout_s=HOUR_S,
    write_timeout_s=HOUR_S,
)


@contextmanager
def opened(backend: Literal["asyncio", "trio"] = "asyncio") -> Iterator[Callable[[bytes], None]]:
    """Run a daemon in a thread of its own; what is returned plays a script before it."""
    starting = running_daemon(
        n_slots=3,
        n_ctx=64,
        n_batch=32,
        adapters=("a",),
        limits=LIMITS,
        images=ImageLimits(n_pixels=2**14, store_bytes=2**18),
        max_queue=2,
    )
    numbers = count()
    with (
        start_blocking_portal(backend) as portal,
        portal.wrap_async_context_manager(starting) as daemon,
    ):

        def run(script: bytes) -> None:
            with capture_logs() as events:
                portal.call(play, daemon, script)
                is_probed = next(numbers) % PROBE_EVERY == 0  # so after an input that is run alone
                portal.call(look_at, daemon, is_probed)
            errors = [event for event in events if event["log_level"] in ("error", "critical")]
            assert not errors

        yield run


async def play(daemon: Daemon, script: bytes) -> None:
    """Play a script to its end."""
    peers: dict[int, Peer] = {}
    async with anyio.create_task_group() as tasks:
        for act in parse(script):
            number = act.arg % N_CONNECTIONS
            if number not in peers or peers[number].is_gone:
                peers[number] = Peer(daemon)
                tasks.start_soon(peers[number].listen)
            await peers[number].do(act)
        for peer in peers.values():
            await peer.take_back()
        for peer in peers.values():
            await peer.settle()


async def look_at(daemon: Daemon, is_probed: bool) -> None:
    """Look at what a script has left behind: nothing."""
    if is_probed:
        await daemon.has_all_slots()
    assert daemon.error is None
    batcher = daemon.runner.batcher
    assert batcher is not None
    await daemon.until(lambda: daemon.server.n_connections == 0 and not batcher.seq_ids)
    batcher.check()
