"""Daemons that are looked at for long: each may not be there yet, go, and come again."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import anyio

from runnerd.client import CannotConnect, ClientError, NotAllowed, connect
from runnerd_protocol.messages import Status

PATIENCE_S = 1.0  # more than this behind its time, a status is missed
RETRY_S = 1.0  # nothing says that a daemon has come: there is no socket to wait at


class Watched:
    """A daemon at a path: the last that it has told, and why there is nothing newer.

    `note` is empty while it is connected. `heard_at` is when the last status came, or, without
    any, when the watch began.
    """

    def __init__(self, path: Path, interval_s: float) -> None:
        self.path = path
        self._interval_s = interval_s
        self.status: Status | None = None
        self.note = "connecting"
        self.heard_at = monotonic()

    @property
    def silence_s(self) -> float:
        """How long ago it has told something."""
        return monotonic() - self.heard_at

    @property
    def trouble(self) -> str:
        """Why its last status is not how it is now; empty if it is."""
        is_late = self.silence_s > 2 * self._interval_s + PATIENCE_S
        return self.note or ("no answer" if is_late else "")

    async def watch(self, tell: Callable[[], None]) -> None:
        """Follow the daemon until cancelled; `tell` is called when there is news."""
        while True:
            try:
                await self._follow(tell)
                self.note = "it has stopped"
            except ClientError as err:
                self.note = self._reason(err)
            tell()
            await anyio.sleep(RETRY_S)

    async def _follow(self, tell: Callable[[], None]) -> None:
        async with connect(self.path) as client, client.subscribe(self._interval_s) as statuses:
            async for status in statuses:
                self.status, self.note, self.heard_at = status, "", monotonic()
                tell()

    def _reason(self, err: ClientError) -> str:
        """Return what is wrong; that nobody listens is the lesser news where somebody did."""
        if isinstance(err, NotAllowed):
            return "not allowed to connect there"
        if isinstance(err, CannotConnect):
            return "it has gone" if self.status is not None else "nobody listens there"
        return str(err)
