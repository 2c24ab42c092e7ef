"""The load of an engine: how far it is, and who waits for its end."""

from collections.abc import Callable
from functools import partial
from time import monotonic

import anyio
from anyio.lowlevel import current_token

from runnerd.engine.base import Engine, EngineConfig, LoadProgress
from runnerd.engine_thread import EngineThread

Loader = Callable[[EngineConfig, LoadProgress], Engine]

PROGRESS_S = 0.05  # progress is told at most this often, phases and ends always


class Loading:
    """One load. `fraction` is how far its `phase` is; `tell` is called when there is news."""

    def __init__(self, load: Loader, tell: Callable[[], None]) -> None:
        self.phase = ""
        self.fraction = 0.0
        self._load = load
        self._tell = tell
        self._is_stopping = False
        self._is_over = anyio.Event()
        self._waiting_since: dict[object, float] = {}
        self._line = anyio.Lock()  # whoever waits for an event is woken in any order on trio

    async def run(self, thread: EngineThread, config: EngineConfig) -> Engine:
        """Load on the engine's thread; what the loader raises is raised."""
        token = current_token()
        last_told_at = 0.0

        def progress(phase: str, fraction: float) -> bool:
            nonlocal last_told_at
            is_news = phase != self.phase or fraction >= 1.0
            now = monotonic()
            self.phase, self.fraction = phase, fraction
            if is_news or now - last_told_at >= PROGRESS_S:
                last_told_at = now
                anyio.from_thread.run_sync(self._tell, token=token)
            return not self._is_stopping

        return await thread.call(partial(self._load, config, progress))

    def stop(self) -> None:
        """Let the loader know that it is to stop, and let go of those who wait for it."""
        self._is_stopping = True
        self.end()

    def end(self) -> None:
        """Let go of those who wait: the engine is there, or will never be."""
        self._is_over.set()

    async def over(self) -> None:
        """Wait for the end, behind those who have waited longer, also while they still leave."""
        if self._is_over.is_set() and not self._line.locked():
            return
        waiter = object()
        self._waiting_since[waiter] = monotonic()
        try:
            async with self._line:
                await self._is_over.wait()
        finally:
            del self._waiting_since[waiter]

    def oldest_wait_s(self, now: float) -> float:
        """Return how long the first of those who wait has waited; 0 if nobody does."""
        return now - next(iter(self._waiting_since.values()), now)
