"""Who waits for the model hears of it: the terminal, the log, and the service manager."""

from collections.abc import Callable

import anyio
import structlog

from runnerd.runner import Runner
from runnerd.systemd.notifier import Notifier
from runnerd_protocol.messages import DaemonState

log = structlog.get_logger()

RETRY_S = 0.2  # until there is room for what must not be lost

LoadWatcher = Callable[[DaemonState, str, float], None]
"""Told the state, the load's phase and its fraction, at each change until the load is over."""


class Announcer:
    """Tells of one load, from its start to its end. `names` are where clients find the model."""

    def __init__(
        self, runner: Runner, notifier: Notifier, on_load: LoadWatcher | None, names: list[str]
    ) -> None:
        self._runner = runner
        self._notifier = notifier
        self._on_load = on_load
        self._names = names
        self._started_at = anyio.current_time()

    async def run(self) -> bool:
        """Tell of the load until it is over; return whether clients are served now."""
        runner, loading = self._runner, self._runner.loading
        while runner.state in ("starting", "loading"):
            await runner.changed.wait()
            if self._on_load is not None:
                self._on_load(runner.state, loading.phase, loading.fraction)
            if runner.state == "loading":
                self._notifier.loading(loading.phase, loading.fraction, anyio.current_time())
        if runner.state != "ready" or runner.engine is None:
            return False
        limits, name = runner.engine.limits, runner.engine.model.name
        log.info(
            "daemon.ready",
            model=name,
            socket=" ".join(self._names),
            n_slots=limits.n_slots,
            n_ctx=limits.n_ctx,
            n_batch=limits.n_batch,
            load_s=round(anyio.current_time() - self._started_at, 2),
        )
        # Without this one the service would be shot in the end.
        await until_told(lambda: self._notifier.ready(f"serving {name}") or runner.is_stopping)
        return not runner.is_stopping


async def until_told(tell: Callable[[], bool]) -> None:
    """Tell the service manager until it had room for it: what must not be lost."""
    while not tell():  # noqa: ASYNC110  # room sets no event
        await anyio.sleep(RETRY_S)
