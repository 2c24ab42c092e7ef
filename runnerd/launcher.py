"""For parents: start a daemon as a child, watch it, talk to it, and leave nothing behind.

    async with launch("model.gguf", slots=4) as runner:
        await runner.ready()
        completion = await runner.client.complete("Once", max_tokens=20)

The child is spoken to over one end of a socketpair that it inherits: no path, no port, and
nobody else can connect. It ends when that socket closes, and when the parent does, however that
comes. It runs in a session of its own: Ctrl-C in the parent's terminal reaches the parent alone,
which then ends the child in its own time. A program may have many runners side by side.
"""

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
from anyio.lowlevel import checkpoint

from runnerd.child_process import ChildProcess, Command
from runnerd.client import Client, ConnectionLost
from runnerd.death import Cause, ChildDied, CrashLoop, Death, RunnerStalled, StartFailed
from runnerd.launch_events import (
    Died,
    Event,
    EventStream,
    LoadProgress,
    Recovered,
    Restarted,
    Stalled,
    StateChanged,
)
from runnerd.lives import Lives
from runnerd.restarting import Restart
from runnerd.unwrapping import unwrapped
from runnerd_protocol.messages import Status

__all__ = [
    "Cause",
    "ChildDied",
    "CrashLoop",
    "Death",
    "Died",
    "Event",
    "EventStream",
    "LoadProgress",
    "Recovered",
    "Restart",
    "Restarted",
    "Runner",
    "RunnerStalled",
    "Stalled",
    "StartFailed",
    "StateChanged",
    "launch",
]

DRAIN_S = 30.0  # what `runnerd serve` gives running requests if it is told nothing else


class Runner:
    """A daemon that runs as our child, and the connection to it. Made by `launch`."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives

    @property
    def client(self) -> Client:
        """The connection to the current child; after a restart it is another one.

        Requests that are in flight when the child dies fail with `ConnectionLost`, whose cause
        (`__cause__`) is `ChildDied`.
        """
        assert self._lives.client is not None  # else nobody was given this runner
        return self._lives.client

    @property
    def status(self) -> Status | None:
        """The newest status of the current child, pushed by it; None until the first."""
        return self._lives.status

    @property
    def pid(self) -> int:
        """The current child's process id."""
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the number of the signal; None while it runs."""
        return self._child.returncode

    @property
    def is_up(self) -> bool:
        """Whether there is a child that answers; it may still be loading."""
        return self._lives.is_up

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has moved for `stall_timeout_s`."""
        return self._lives.stall is not None

    @property
    def n_restarts(self) -> int:
        """How often the child was started again."""
        return self._lives.n_restarts

    @property
    def _child(self) -> ChildProcess:
        assert self._lives.child is not None
        return self._lives.child

    def events(self) -> EventStream:
        """Return a stream of what happens from now on. There may be several."""
        return self._lives.events.open()

    async def ready(self, on_status: Callable[[Status], None] | None = None) -> Status:
        """Wait until the model is loaded; `on_status` is told of the steps of the load.

        With a restart policy this goes on over deaths that are followed by a restart.

        Raises:
            ChildDied: the load failed, or the child ended; the message says why.
            CrashLoop: it was restarted too often.
            RunnerStalled: nothing moves, and it is not to be killed for that; whoever calls this
                again goes on waiting if it moves.
        """
        told: Status | None = None
        await checkpoint()  # or who asks again and again would let nobody else work
        while True:
            status = self._lives.status
            if status is not None and status is not told:
                told = status
                if on_status is not None:
                    on_status(status)
            self._lives.check_goes_on()
            if status is not None and status.state == "ready" and self._lives.is_up:
                return status
            self._lives.check_moves()
            await self._lives.news.wait()

    async def stop(self, drain_s: float = DRAIN_S) -> ChildDied:
        """Let running requests finish, end the rest, and return how it has ended.

        They have `drain_s`, but no longer than the daemon's own `--drain`; what has not ended
        some seconds later is killed. Nothing is restarted after this.
        """
        return ChildDied(await self._lives.stop(drain_s))

    async def death(self) -> ChildDied:
        """Return why the child has ended; one that has not is given some seconds to do so."""
        return ChildDied(await self._child.end())


@asynccontextmanager
async def launch(
    model: str,
    *,
    slots: int | None = None,
    ctx: int | None = None,
    options: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    restart: Restart | None = None,
    stall_timeout_s: float = 120.0,
    on_stall: Literal["tell", "kill"] = "tell",
) -> AsyncIterator[Runner]:
    """Run a daemon for as long as the block lasts.

    `options` are further ones of `runnerd serve`, `on_line` is told of each line of its stderr.
    The child gets little of our environment (see `child_process`), and `env` on top of that.
    With `restart` one that dies is started again, unless it was told to stop, or has said that
    its options or its model cannot be used. `on_stall="kill"` kills one that does not move.

    Raises:
        StartFailed: there is no such `python`, or the system has no room for a process.
        ChildDied: it ended before it answered, or failed while the block was waiting for it.
        RunnerStalled: it does not answer, and is not to be killed for that.
    """
    sizes = [
        f"{name}={value}"
        for name, value in (("--slots", slots), ("--ctx", ctx))
        if value is not None
    ]
    command = Command(model, (*sizes, *options), python, env or {}, on_line)
    lives = Lives(command, restart, stall_timeout_s, kills_stalled=on_stall == "kill")
    runner = Runner(lives)
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lives.run)
            try:
                await lives.up()
                yield runner
            except ConnectionLost as err:
                await checkpoint()  # is cancelled where `lives` has failed: its error comes out
                died = err.__cause__
                if not isinstance(died, ChildDied):
                    if lives.is_up:  # a connection to another daemon, or to an earlier child
                        raise
                    died = await runner.death()
                if died.returncode == 0:  # it ended well: the connection is all there is
                    raise
                raise ChildDied(died.death) from err
            tasks.cancel_scope.cancel()
