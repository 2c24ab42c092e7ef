"""SIGHUP: the settings are read again, and hold as far as they can without a new start."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import structlog
from anyio.lowlevel import current_token

from runnerd.announcing import until_told
from runnerd.config import Config
from runnerd.engine_thread import EngineThread, poster
from runnerd.errors import ConfigError
from runnerd.reloading import apply
from runnerd.runner import Runner
from runnerd.systemd.notifier import Notifier

log = structlog.get_logger()

Reload = Callable[[], Config]
"""Reads the settings once more; raises ConfigError if that cannot be, and has changed nothing."""


@contextmanager
def at_hang_up(ask: Callable[[], None] | None) -> Iterator[None]:
    """Have a function called in the event loop at each SIGHUP, until the end of the block.

    With none, the signal does what it did before.

    A signal receiver of anyio's leaves the default behind, be it for a moment, and that ends the
    process. Its receivers for other signals see to it that this one wakes the event loop, too.
    """
    if ask is None:
        yield
        return
    post = poster(current_token().native_token)
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: post(ask))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class ReloadTask:
    """Reloads when asked to, one at a time, and never while there is no model yet, or no more.

    `reload` is None where the settings came from the command line alone.
    """

    def __init__(self, reload: Reload | None, runner: Runner, notifier: Notifier) -> None:
        self._reload = reload
        self._runner = runner
        self._notifier = notifier
        self._asked = anyio.Event()

    def ask(self) -> None:
        """Have the settings read, as soon as that can be; asked twice meanwhile, once."""
        if self._runner.is_stopping:
            log.info("daemon.reload_ignored", cause="it is shutting down")
        else:
            self._asked.set()

    async def run(self) -> None:
        """Reload when asked to, until cancelled. To be called when the model is there."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            # Without these two, also where it fails, the manager would wait for what never comes.
            await until_told(lambda: self._runner.is_stopping or self._notifier.reloading())
            if self._runner.is_stopping:  # it has been told since, and that is the last word
                return
            outcome = await self._outcome()
            await until_told(partial(self._tell, outcome))

    def _tell(self, outcome: str) -> bool:
        return self._runner.is_stopping or self._notifier.reloaded(outcome)

    async def _outcome(self) -> str:
        """Read and apply the settings; return what has become of it, in words."""
        if self._reload is None:
            why_not = "there is no settings file to read again"
            log.warning("daemon.reload_failed", error=why_not)
            return why_not
        try:
            new = await _in_thread(self._reload)
            changes = apply(new, self._runner)
        except ConfigError as err:
            log.error("daemon.reload_failed", error=str(err))
            return f"settings as before: {err}"
        except Exception:  # whatever it is, it is no reason to end what is being served
            log.exception("daemon.reload_failed")
            return "the settings could not be read: an internal error"
        log.info("daemon.reloaded", applied=list(changes.applied), waiting=list(changes.waiting))
        waiting = ", ".join(changes.waiting)
        return f"settings read; for a restart wait: {waiting}" if waiting else "settings read"


async def _in_thread(reload: Reload) -> Config:
    """Read the settings where a file, or a user's name, that never comes holds up nothing.

    Not even the exit, which would wait for a thread of anyio's.
    """
    thread = EngineThread("settings")
    try:
        return await thread.call(reload, abandon_on_cancel=True)
    finally:
        thread.close()
