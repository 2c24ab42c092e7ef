"""How a daemon that is told to stop comes to its end, and how one that cannot is ended."""

import os
from collections.abc import Callable
from typing import NoReturn

import anyio
import structlog
from anyio.abc import TaskGroup

from runnerd.entrances import Entrances
from runnerd.runner import Runner
from runnerd.server import Server
from runnerd.systemd.notifier import STATUS_S, Notifier

log = structlog.get_logger()

EXIT_INTERNAL = 70
KILL_S = 10.0  # after the drain, for the step in progress to end
FAREWELL_S = 5.0  # what the last answers and the engine's end may take, and a busy machine


class Ending:
    """Ends one daemon; the drain is one of its `tasks`.

    `before_kill` is called, and must not take long, where the process ends at once.
    """

    def __init__(
        self,
        runner: Runner,
        server: Server,
        entrances: Entrances,
        notifier: Notifier,
        tasks: TaskGroup,
        before_kill: Callable[[], None] | None,
    ) -> None:
        self._runner = runner
        self._server = server
        self._entrances = entrances
        self._notifier = notifier
        self._tasks = tasks
        self._before_kill = before_kill

    def begin(self, cause: str, drain_s: float, kill_s: float = KILL_S) -> None:
        """Take nothing new; give what runs so many seconds."""
        n_requests = self._n_requests
        facts: dict[str, object] = {}
        if self._runner.batcher is None:
            drain_s = 0.0  # a load is to end, not to go on
            facts = self._load_facts
        log.info("daemon.draining", cause=cause, n_requests=n_requests, drain_s=drain_s, **facts)
        where = _left(n_requests, drain_s)
        if facts:
            where = f"ending the load, which is at: {self._runner.loading.phase}"
        self._notifier.stopping(where)
        self._entrances.close()
        self._runner.stop()
        self._tasks.start_soon(self._drain, drain_s, kill_s)

    def at_once(self, cause: str) -> NoReturn:
        """End without waiting for anything: a native call may never return."""
        facts = self._load_facts if self._runner.batcher is None else {}
        age_s = round(self._runner.watches.age_s, 1)
        log.error("daemon.killed", cause=cause, step_age_s=age_s, **facts)
        self._notifier.failed(f"killed: {cause}")
        self._entrances.close()
        if self._before_kill is not None:
            self._before_kill()
        os._exit(EXIT_INTERNAL)

    async def _drain(self, drain_s: float, kill_s: float) -> None:
        with anyio.move_on_after(drain_s):
            await self._tell_drain(anyio.current_time() + drain_s, kill_s)
        self._runner.cancel_all()
        await anyio.sleep(kill_s)
        what = "load" if self._runner.batcher is None else "step"
        if self._runner.state == "stopped":  # and frees the engine
            what = "close"
        self._runner.give_up(f"the {what} in progress does not end")
        await self._server.close()
        self.at_once(f"a {what} that does not end")

    async def _tell_drain(self, deadline: float, kill_s: float) -> None:
        """Ask for time as long as requests progress; a step in progress is given its own."""
        n_beats = self._n_beats
        while True:
            await anyio.sleep(STATUS_S)
            if n_beats == self._n_beats:
                continue
            n_beats = self._n_beats
            left_s = max(0.0, deadline - anyio.current_time())
            longest_s = min(left_s, self._runner.config.step_timeout_s)
            self._notifier.draining(
                _left(self._n_requests, left_s), longest_s + kill_s + FAREWELL_S
            )

    @property
    def _n_beats(self) -> int:
        return 0 if self._runner.loop is None else self._runner.loop.pulse.n_beats

    @property
    def _n_requests(self) -> int:
        return 0 if self._runner.batcher is None else len(self._runner.batcher.seq_ids)

    @property
    def _load_facts(self) -> dict[str, object]:
        """Where the load is that has to end, and may be what holds up the end."""
        loading = self._runner.loading
        return {"load_phase": loading.phase, "load_fraction": round(loading.fraction, 3)}


def _left(n_requests: int, seconds: float) -> str:
    if not n_requests:
        return "draining: no request is left"
    requests = "1 request has" if n_requests == 1 else f"{n_requests} requests have"
    return f"draining: {requests} {seconds:.0f} s left"
