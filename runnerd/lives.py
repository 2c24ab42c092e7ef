"""The children of one launched runner: one at a time, each watched from its start to its end."""

import math
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import astuple
from functools import partial

import anyio
from anyio.abc import UNIXSocketStream

from runnerd.child_process import END_S, ChildProcess, Command
from runnerd.client import Client, ClientError, ConnectionLost, attach
from runnerd.death import FINAL, ChildDied, CrashLoop, Death, RunnerStalled, StartFailed
from runnerd.launch_events import (
    Died,
    EventFeed,
    LoadProgress,
    Recovered,
    Restarted,
    Stalled,
    StateChanged,
)
from runnerd.restarting import Backoff, Restart
from runnerd.stall_clock import StallClock, is_loading
from runnerd.unwrapping import unwrapped
from runnerd_protocol.messages import Status

STATUS_S = 1.0  # between the statuses of a child with which nothing changes
CAUSE_S = 2.0  # for a child to end whose connection has ended, before its requests fail


class Lives:
    """What is known of the current child. `news` is set, and replaced, at each change of it.

    `client` and `status` are those of the last child that has said something, `is_up` says that
    it lives. `stall` is what does not move, and for how long it has not.
    """

    def __init__(
        self,
        command: Command,
        restart: Restart | None,
        stall_timeout_s: float,
        *,
        kills_stalled: bool,
    ) -> None:
        self.child: ChildProcess | None = None
        self.client: Client | None = None
        self.status: Status | None = None
        self.stall: tuple[str, float] | None = None
        self.is_up = False
        self.n_restarts = 0
        self.events = EventFeed()
        self.news = anyio.Event()
        self._stopping = anyio.Event()
        self._death: Death | None = None
        self._command = command
        self._backoff = Backoff(restart) if restart is not None else None
        self._stall_timeout_s = stall_timeout_s
        self._kills_stalled = kills_stalled
        self._end: Callable[[], ClientError] | None = None

    def check_goes_on(self) -> None:
        """Raise why there is no child any more, and will be none; each time anew."""
        if self._end is not None:
            raise self._end()

    def check_moves(self) -> None:
        """Raise what does not move; one that is killed for that is told of by its end."""
        if self.stall is not None and not self._kills_stalled:
            what, still_s = self.stall
            raise RunnerStalled(f"nothing has moved for {still_s:.1f} s ({what})")

    async def up(self) -> None:
        """Wait until there is a child that answers."""
        while not self.is_up:
            self.check_goes_on()
            self.check_moves()
            await self.news.wait()

    async def run(self) -> None:
        """Have one child after the other, until there shall be no more."""
        try:
            while self._end is None:
                with unwrapped():
                    await self._live_and_rest()
                self._tell()
        finally:
            if self._end is None:
                self._end = partial(ConnectionLost, "the runner's block was left")
            self.events.end()
            self._tell()

    async def stop(self, drain_s: float) -> Death:
        """Let the current child finish what it does, and have no other."""
        self._stopping.set()
        if self.child is not None:
            await self.child.stop(drain_s)
        while self._end is None:
            await self.news.wait()
        assert self._death is not None
        return self._death

    async def _live_and_rest(self) -> None:
        delay_s = None
        try:
            death = await self._live()
        except StartFailed as err:
            end: Callable[[], ClientError] = partial(StartFailed, str(err))
            if self.n_restarts:  # there was room for a process once, and may be again
                delay_s = self._delay_s()
        else:
            end = partial(ChildDied, death)
            if self._backoff is not None and death.cause not in FINAL and not self._is_stopping:
                policy, delay_s = self._backoff.policy, self._delay_s()
                if delay_s is None:
                    end = partial(CrashLoop, death, policy.max_restarts, policy.window_s)
            self.events.put(Died(death, delay_s))
        if delay_s is None or await self._stops_within(delay_s):
            self._end = end
        else:
            self.n_restarts += 1

    @property
    def _is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def _stops_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._stopping.wait()
        return self._is_stopping

    def _delay_s(self) -> float | None:
        if self._backoff is None:
            return None
        return self._backoff.next_delay_s(anyio.current_time())

    async def _live(self) -> Death:
        """Start a child and stay with it to its end."""
        child, sock = await ChildProcess.start(self._command)
        self.child, self.status, self.stall = child, None, None
        clock = StallClock(self._stall_timeout_s, self._stalled, self._recovered)
        reading = anyio.CancelScope(shield=True)  # to the end, or the child could not write
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_within, reading, child.read_stderr)
                tasks.start_soon(clock.run)
                tasks.start_soon(_end_with, child, sock)
                if self.n_restarts:
                    self.events.put(Restarted(child.pid, self.n_restarts))
                try:
                    if not self._is_stopping:  # while it was started
                        await self._talk(child, sock, clock)
                finally:
                    clock.stop()
                    sock.close()
                    self.is_up, self.stall = False, None
                    with anyio.CancelScope(shield=True):
                        death = self._death = await child.end()
                    reading.cancel()
                tasks.cancel_scope.cancel()
        finally:
            await child.close()
        return death

    async def _talk(self, child: ChildProcess, sock: socket.socket, clock: StallClock) -> None:
        """Follow what a child says until it is gone, or has nothing more to say."""

        async def why_lost() -> ChildDied | None:
            self.is_up = False  # whoever tries again at once is to wait for the next child
            with anyio.move_on_after(CAUSE_S):
                return ChildDied(await child.death())
            return None

        try:
            stream = await UNIXSocketStream.from_socket(sock)
            async with attach(stream, why_lost) as client:
                child.note_group()
                self.client, self.is_up = client, True
                self._tell()
                interval_s = min(STATUS_S, self._stall_timeout_s / 4)
                async with client.subscribe(interval_s) as statuses:
                    async for status in statuses:
                        self._take(child, status)
                        clock.see(status)
                clock.stop()
                # It drains, or has failed: there may still be answers on their way.
                with anyio.move_on_after(END_S if status.state == "failed" else math.inf):
                    await child.wait()
                    await client.status()  # is lost when all that came has been handed out
        except ConnectionLost:
            if child.returncode is None:  # it has not ended, but will for that
                child.note_cut_off()

    def _take(self, child: ChildProcess, status: Status) -> None:
        before, self.status = self.status, status
        child.note_status(status)
        if before is None or before.state != status.state:
            self.events.put(StateChanged(status.state))
        if is_loading(status):
            progress = LoadProgress(status.load_phase, status.load_fraction)
            if before is None or (before.load_phase, before.load_fraction) != astuple(progress):
                self.events.put(progress)
        self._tell()

    def _stalled(self, what: str, still_s: float) -> None:
        self.stall = what, still_s
        self.events.put(Stalled(what, still_s))
        if self._kills_stalled and self.child is not None:
            self.child.kill_stalled()
        self._tell()

    def _recovered(self, still_s: float) -> None:
        self.stall = None
        self.events.put(Recovered(still_s))
        self._tell()

    def _tell(self) -> None:
        news, self.news = self.news, anyio.Event()
        news.set()


async def _within(scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()


async def _end_with(child: ChildProcess, sock: socket.socket) -> None:
    """End a connection with its process, also where a process of that one still holds it."""
    await child.wait()
    with suppress(OSError):  # it is closed
        sock.shutdown(socket.SHUT_RD)  # what has come is still read
