"""The daemon's life: listen, load, serve, drain, and the exit status that says how it went.

SIGTERM or SIGINT once: refuse new requests, let running ones finish within `drain_s`, then
cancel them; a load is to end at once. A second time: end now. SIGUSR1: log the state. SIGHUP:
read the settings again, where there are any to read, or a service manager; else it is a terminal's,
and is to us what one SIGTERM is, unless it was ignored before (nohup).
"""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from importlib.util import find_spec

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from runnerd.announcing import Announcer, LoadWatcher
from runnerd.condition import status
from runnerd.config import Config, check_config
from runnerd.ending import EXIT_INTERNAL, Ending
from runnerd.engine import open_engine
from runnerd.entrances import Entrances
from runnerd.errors import ConfigError, EngineBroken, LoadError, OutOfMemory
from runnerd.listener import BoundSocket, bind_unix
from runnerd.log import tell_suppressed
from runnerd.malloc import return_large_blocks
from runnerd.parent_watch import until_parent_ends, wake_at_parents_death
from runnerd.reload_task import Reload, ReloadTask, at_hang_up
from runnerd.runner import Runner
from runnerd.server import Server
from runnerd.state_facts import state_facts
from runnerd.systemd.environment import ServiceEnvironment
from runnerd.systemd.notifier import Notifier
from runnerd.systemd.watchdog import Watchdog
from runnerd.vital_signs import VitalSigns

log = structlog.get_logger()

EXIT_OK = 0
LEFT_KILL_S = 4.0  # for the step in progress, when the parent has closed its socket and waits
ORPHAN_KILL_S = 0.5  # the same, when there is no parent left to wait for anything
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
NO_SERVICE = ServiceEnvironment()
# How soon a thread gets the interpreter that others use: the engine's, before and after a step.
# Python's 5 ms are a third of a step on a device, and are waited at each call of a sampler.
SWITCH_S = 1e-4

LastLines = Callable[[], list[str]]


async def run_daemon(
    config: Config,
    last_native_lines: LastLines,
    on_load: LoadWatcher | None = None,
    before_kill: Callable[[], None] | None = None,
    service: ServiceEnvironment = NO_SERVICE,
    reload: Reload | None = None,
) -> int:
    """Serve until told to stop; return the exit status.

    `last_native_lines` gives what the native libraries have logged lately: the cause of a
    failed load, where the file itself shows none. `before_kill` is called, and must not take
    long, where the process ends without returning from here. `reload` is for SIGHUP.
    """
    notifier = Notifier(service.notify_address, config.load_timeout_s)
    for text in service.warnings:
        log.warning("systemd.misunderstood", text=text)
    try:
        # Around everything: a signal that nobody receives would leave the socket file behind.
        is_reloading = reload is not None or service.is_managed
        numbers = SIGNALS if is_reloading else SIGNALS + _terminal_signals()
        with ExitStack() as stack, anyio.open_signal_receiver(*numbers) as signals:
            for each in service.sockets:
                stack.enter_context(each.socket)
            check_config(config)
            bound = None
            if config.socket_path is not None:
                bound = stack.enter_context(bind_unix(config.socket_path))
            daemon = _Daemon(config, service, notifier, bound, last_native_lines)
            return await daemon.run(signals, on_load, before_kill, reload)
    except ConfigError as err:
        log.error("daemon.misconfigured", error=str(err))
        notifier.failed(str(err), err)
        return err.exit_code
    except Exception as err:
        log.exception("daemon.crashed")
        notifier.failed("an internal error", err)
        return EXIT_INTERNAL


class _Daemon:
    """One run of the daemon."""

    def __init__(
        self,
        config: Config,
        service: ServiceEnvironment,
        notifier: Notifier,
        bound: BoundSocket | None,
        last_native_lines: LastLines,
    ) -> None:
        self._runner = Runner(config, open_engine)
        self._server = Server(self._runner)
        self._entrances = Entrances(self._server, bound, service.sockets)
        self._notifier = notifier
        self._is_managed = service.is_managed
        self._watchdog_s = service.watchdog_s
        self._last_native_lines = last_native_lines
        self._exit_code = EXIT_OK
        self._was_told_to_stop = False

    async def run(
        self,
        signals: AsyncIterator[signal.Signals],
        on_load: LoadWatcher | None,
        before_kill: Callable[[], None] | None,
        reload: Reload | None,
    ) -> int:
        runner, server, notifier = self._runner, self._server, self._notifier
        log.info("daemon.starting", pid=os.getpid(), model=runner.config.engine.model)
        reload_task = ReloadTask(reload, runner, notifier)
        is_reloading = reload is not None or self._is_managed
        with at_hang_up(reload_task.ask if is_reloading else None):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tell_suppressed)
                ending = Ending(runner, server, self._entrances, notifier, tasks, before_kill)
                tasks.start_soon(self._watch_signals, signals, ending)
                self._entrances.open(tasks)
                self._follow_parent(tasks, ending)
                announcer = Announcer(runner, notifier, on_load, self._names)
                tasks.start_soon(self._announce, tasks, announcer, reload_task)
                await self._run_engine()
                self._entrances.close()
                await server.close()
                await runner.close()
                tasks.cancel_scope.cancel()
            log.info("daemon.stopped", exit_code=self._exit_code)
            if self._exit_code == EXIT_OK:
                notifier.stopped()
        return self._exit_code

    @property
    def _names(self) -> list[str]:
        """Where clients find us, or a parent does."""
        return self._entrances.names or [f"fd {self._runner.config.inherited_fd}"]

    async def _announce(
        self, tasks: TaskGroup, announcer: Announcer, reload_task: ReloadTask
    ) -> None:
        """Tell of the load; begin what takes a model that is there."""
        if not await announcer.run():
            return
        tasks.start_soon(reload_task.run)
        if self._watchdog_s:
            doubt = VitalSigns(self._runner).doubt
            tasks.start_soon(Watchdog(self._watchdog_s, self._notifier, doubt).run)

    async def _run_engine(self) -> None:
        try:
            await self._runner.run()
            if self._runner.state == "failed":  # given up, and yet it has ended
                self._exit_code = EXIT_INTERNAL
                if self._runner.failure is not None:
                    self._notifier.failed(self._runner.failure.text)
        except (LoadError, ConfigError) as err:
            self._exit_code = err.exit_code
            if err.exit_code:
                self._notifier.failed(str(err), err)
                failure = self._runner.failure
                facts = {} if failure is None else failure.details
                cause = await self._cause()
                log.error("daemon.load_failed", error=str(err), native=cause, **facts)
        except EngineBroken as err:
            self._exit_code = EXIT_INTERNAL
            self._notifier.failed(str(err), err)
            log.error("daemon.engine_failed", error=str(err), native=await self._cause())
        except Exception as err:
            has_no_memory = isinstance(err, MemoryError)
            self._exit_code = OutOfMemory.exit_code if has_no_memory else EXIT_INTERNAL
            self._notifier.failed("out of memory" if has_no_memory else "an internal error", err)
            log.exception("daemon.crashed")

    async def _cause(self) -> list[str]:
        lines = await to_thread.run_sync(self._last_native_lines)
        return [line for line in lines if "rror" in line or "fail" in line][-3:]

    # --- what ends it ----------------------------------------------------------------------

    async def _watch_signals(self, signals: AsyncIterator[signal.Signals], ending: Ending) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGUSR1:
                self._log_state()
            elif self._was_told_to_stop:
                if number != signal.SIGHUP:  # a terminal's comes twice: by the kernel and a shell
                    ending.at_once(name)
            else:
                self._was_told_to_stop = True
                if not self._runner.is_stopping:  # else it is ending by itself, and soon
                    ending.begin(name, self._runner.config.drain_s)

    def _follow_parent(self, tasks: TaskGroup, ending: Ending) -> None:
        config = self._runner.config
        if config.inherited_fd is not None:
            tasks.start_soon(self._serve_parent, config.inherited_fd, ending)
        if config.parent_fd is not None:
            wake_at_parents_death()
            tasks.start_soon(_watch_parent, config.parent_fd, ending)

    async def _serve_parent(self, fd: int, ending: Ending) -> None:
        """Serve the parent; when it has gone there is nobody left to serve."""
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        await self._server.serve_parent(sock)
        if not self._runner.is_stopping:
            ending.begin("parent has left", 0.0, LEFT_KILL_S)

    def _log_state(self) -> None:
        now = status(0, self._runner, self._server.n_connections, last=True)
        n_tasks = len(anyio.get_running_tasks())
        log.info("daemon.state", n_tasks=n_tasks, **state_facts(now))


def _terminal_signals() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, unless who has started us wants us to outlive the terminal."""
    return (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL else ()


async def _watch_parent(fd: int, ending: Ending) -> None:
    """End with the parent, also while others still hold its end of the socket."""
    await until_parent_ends(fd)
    ending.begin("parent has ended", 0.0, ORPHAN_KILL_S)


def start(
    config: Config,
    service: ServiceEnvironment,
    backend: str,
    last_native_lines: LastLines,
    on_load: LoadWatcher | None = None,
    before_kill: Callable[[], None] | None = None,
    reload: Reload | None = None,
) -> int:
    """Run the daemon in an event loop of its own; return the exit status."""
    return_large_blocks()
    sys.setswitchinterval(SWITCH_S)
    options: dict[str, object] = {}
    if backend == "asyncio":
        options["use_uvloop"] = find_spec("uvloop") is not None

    async def run() -> int:
        exit_code = await run_daemon(
            config, last_native_lines, on_load, before_kill, service, reload
        )
        # The handlers are gone, and it is not a signal that has ended us.
        for number in (*SIGNALS, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        return exit_code

    return anyio.run(run, backend=backend, backend_options=options)
