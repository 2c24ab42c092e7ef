"""What a daemon's log says during a soak: the tasks of its event loop, and what went wrong."""

import os
import signal

import anyio
import msgspec

STATE_S = 30.0  # for a daemon at rest to say how it is


class _State(msgspec.Struct):
    event: str = ""
    n_tasks: int = 0


class DaemonLog:
    """Hears the lines of a daemon's log as they come."""

    def __init__(self) -> None:
        self.n_tracebacks = 0
        self._state: _State | None = None
        self._has_told = anyio.Event()

    def note(self, line: str) -> None:
        """Hear a line."""
        self.n_tracebacks += "Traceback" in line
        if '"daemon.state"' in line:
            self._state = msgspec.json.decode(line, type=_State)
            self._has_told.set()

    async def n_tasks(self, pid: int) -> int:
        """Ask the daemon for its state; return how many tasks its event loop has.

        Raises:
            TimeoutError: it does not say.
        """
        self._has_told = anyio.Event()
        os.kill(pid, signal.SIGUSR1)
        with anyio.fail_after(STATE_S):
            await self._has_told.wait()
        assert self._state is not None
        return self._state.n_tasks
