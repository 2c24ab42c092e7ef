"""Tells a child that moves slowly from one that does not move.

What counts is change: of the load's phase or fraction, and later of the steps made while there is
work. A daemon without work moves by answering at all, and so does one whose clients read too
little of their answers for it to go on.
"""

import math
from collections.abc import Callable

import anyio

from runnerd_protocol.messages import SlotState, Status

# Of the time-out, in two parts: a parent that was itself stopped finds the first one over when it
# goes on, and reads in the second what has come in the meantime.
GRACE = 0.1

WORKING: set[SlotState] = {"prompt", "generating", "awaiting_media"}

Progress = tuple[object, ...]


class StallClock:
    """Runs out when nothing moves for `timeout_s`.

    `on_stall` is called with what does not move, `on_recover` with how long nothing did.
    """

    def __init__(
        self,
        timeout_s: float,
        on_stall: Callable[[str, float], None],
        on_recover: Callable[[float], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._on_stall = on_stall
        self._on_recover = on_recover
        self._moved_at = anyio.current_time()
        self._progress: Progress = ()
        self._what = "start"
        self._is_stalled = False
        self._moved = anyio.Event()
        self._watching = anyio.CancelScope()

    def see(self, status: Status) -> None:
        """Take what the child has told."""
        progress = progress_of(status)
        self._what = status.load_phase or "load" if is_loading(status) else "work"
        if progress != self._progress or is_idle(status):
            self._progress = progress
            self._move()

    def _move(self) -> None:
        now = anyio.current_time()
        still_s, self._moved_at = now - self._moved_at, now
        moved, self._moved = self._moved, anyio.Event()
        moved.set()
        if self._is_stalled:
            self._is_stalled = False
            self._on_recover(still_s)

    async def run(self) -> None:
        """Watch until it is stopped."""
        with self._watching:
            await self._watch()

    def stop(self) -> None:
        """Watch no longer: what ends moves in its own time."""
        self._watching.cancel()

    async def _watch(self) -> None:
        first_s, grace_s = (1 - GRACE) * self._timeout_s, GRACE * self._timeout_s
        while True:
            if await self._moves_within(first_s) or await self._moves_within(grace_s):
                continue
            self._is_stalled = True
            self._on_stall(self._what, anyio.current_time() - self._moved_at)
            await self._moves_within(math.inf)

    async def _moves_within(self, seconds: float) -> bool:
        moved = self._moved
        with anyio.move_on_after(seconds):
            await moved.wait()
        return moved.is_set()


def is_loading(status: Status) -> bool:
    """Whether there is no model yet."""
    return status.state in ("starting", "loading")


def is_idle(status: Status) -> bool:
    """Whether there is nothing to do, or nothing that can be done: clients do not read."""
    if status.state != "ready" or status.step_age_s:
        return False
    states = {slot.state for slot in status.slots}
    if states & WORKING:
        return False
    return "paused" in states or not status.n_waiting


def progress_of(status: Status) -> Progress:
    """Return what changes while a daemon moves."""
    if is_loading(status):
        return status.state, status.load_phase, status.load_fraction
    return (
        status.n_steps,
        status.n_requests,
        status.n_failed,
        status.n_cancelled,
        status.n_embeds,
        status.n_images_encoded,
    )
