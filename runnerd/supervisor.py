"""The daemon's life: listen, load, serve, drain, and the exit status that says how it went.

SIGTERM or SIGINT once: refuse new requests, let running ones finish within `drain_s`, then
cancel them; a load is to end at once. A second time: end now. SIGUSR1: log the state.
"""

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from runnerd.condition import status
from runnerd.config import Config, check_config
from runnerd.engine import open_engine
from runnerd.errors import ConfigError, EngineBroken, LoadError
from runnerd.listener import BoundSocket, bind_unix
from runnerd.malloc import return_large_blocks
from runnerd.parent_watch import until_parent_ends, wake_at_parents_death
from runnerd.runner import Runner
from runnerd.server import Server
from runnerd.state_facts import state_facts
from runnerd.systemd.notifier import Notifier
from runnerd_protocol.messages import DaemonState

log = structlog.get_logger()

EXIT_OK = 0
EXIT_INTERNAL = 70
KILL_S = 10.0  # after the drain, for the step in progress to end
LEFT_KILL_S = 4.0  # the same, when the parent has closed its socket and waits for our end
ORPHAN_KILL_S = 0.5  # the same, when there is no parent left to wait for anything
UNLINK_CHECK_S = 5.0  # how soon a deleted socket file is noticed
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

LastLines = Callable[[], list[str]]
LoadWatcher = Callable[[DaemonState, str, float], None]
"""Told the state, the load's phase and its fraction, at each change until the load is over."""


async def run_daemon(
    config: Config,
    last_native_lines: LastLines,
    on_load: LoadWatcher | None = None,
    before_kill: Callable[[], None] | None = None,
) -> int:
    """Serve until told to stop; return the exit status.

    `last_native_lines` gives what the native libraries have logged lately: the cause of a
    failed load, where the file itself shows none. `before_kill` is called, and must not take
    long, where the process ends without returning from here.
    """
    try:
        check_config(config)
        # Around everything: a signal that nobody receives would leave the socket file behind.
        with anyio.open_signal_receiver(*SIGNALS) as signals, ExitStack() as stack:
            bound = None
            if config.socket_path is not None:
                bound = stack.enter_context(bind_unix(config.socket_path))
            daemon = _Daemon(config, bound, last_native_lines, on_load, before_kill)
            return await daemon.run(signals)
    except ConfigError as err:
        log.error("daemon.misconfigured", error=str(err))
        return err.exit_code
    except Exception:
        log.exception("daemon.crashed")
        return EXIT_INTERNAL


class _Daemon:
    """One run of the daemon."""

    def __init__(
        self,
        config: Config,
        bound: BoundSocket | None,
        last_native_lines: LastLines,
        on_load: LoadWatcher | None,
        before_kill: Callable[[], None] | None,
    ) -> None:
        self._config = config
        self._bound = bound
        self._last_native_lines = last_native_lines
        self._on_load = on_load
        self._before_kill = before_kill
        self._runner = Runner(config, open_engine)
        self._server = Server(config, self._runner)
        self._notifier = Notifier.from_environment()
        self._exit_code = EXIT_OK
        self._was_told_to_stop = False
        self._started_at = anyio.current_time()

    async def run(self, signals: AsyncIterator[signal.Signals]) -> int:
        log.info("daemon.starting", pid=os.getpid(), model=self._config.engine.model)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_signals, tasks, signals)
            self._start_listening(tasks)
            tasks.start_soon(self._announce)
            await self._run_engine()
            self._stop_listening()
            await self._server.close()
            await self._runner.close()
            tasks.cancel_scope.cancel()
        log.info("daemon.stopped", exit_code=self._exit_code)
        return self._exit_code

    def _start_listening(self, tasks: TaskGroup) -> None:
        if self._bound is not None:
            tasks.start_soon(self._server.listen, self._bound.socket.dup(), tasks)
            tasks.start_soon(_watch_path, self._bound)
        if self._config.inherited_fd is not None:
            tasks.start_soon(self._serve_parent, tasks, self._config.inherited_fd)
        if self._config.parent_fd is not None:
            wake_at_parents_death()
            tasks.start_soon(self._watch_parent, tasks, self._config.parent_fd)

    async def _run_engine(self) -> None:
        try:
            await self._runner.run()
            if self._runner.state == "failed":  # given up, and yet it has ended
                self._exit_code = EXIT_INTERNAL
        except (LoadError, ConfigError) as err:
            self._exit_code = err.exit_code
            if err.exit_code:
                failure = self._runner.failure
                facts = {} if failure is None else failure.details
                cause = await self._cause()
                log.error("daemon.load_failed", error=str(err), native=cause, **facts)
        except EngineBroken as err:
            self._exit_code = EXIT_INTERNAL
            log.error("daemon.engine_failed", error=str(err), native=await self._cause())
        except Exception:
            self._exit_code = EXIT_INTERNAL
            log.exception("daemon.crashed")

    async def _cause(self) -> list[str]:
        lines = await to_thread.run_sync(self._last_native_lines)
        return [line for line in lines if "rror" in line or "fail" in line][-3:]

    async def _announce(self) -> None:
        """Tell of the load; log when the model is there, and where to find it."""
        runner = self._runner
        while runner.state in ("starting", "loading"):
            await runner.changed.wait()
            if self._on_load is not None:
                self._on_load(runner.state, runner.loading.phase, runner.loading.fraction)
            if runner.state == "loading":
                now = anyio.current_time()
                self._notifier.loading(runner.loading.phase, runner.loading.fraction, now)
        if self._runner.state == "ready" and self._runner.engine is not None:
            limits = self._runner.engine.limits
            log.info(
                "daemon.ready",
                model=self._runner.engine.model.name,
                socket=str(self._config.socket_path or f"fd {self._config.inherited_fd}"),
                n_slots=limits.n_slots,
                n_ctx=limits.n_ctx,
                n_batch=limits.n_batch,
                load_s=round(anyio.current_time() - self._started_at, 2),
            )
            self._notifier.ready(f"serving {self._runner.engine.model.name}")

    # --- the end ---------------------------------------------------------------------------

    async def _watch_signals(
        self, tasks: TaskGroup, signals: AsyncIterator[signal.Signals]
    ) -> None:
        async for number in signals:
            if number == signal.SIGUSR1:
                self._log_state()
            elif self._was_told_to_stop:
                self._exit_now(signal.Signals(number).name)
            else:
                self._was_told_to_stop = True
                if not self._runner.is_stopping:  # else it is ending by itself, and soon
                    self._stop(tasks, signal.Signals(number).name, self._config.drain_s)

    def _stop(self, tasks: TaskGroup, cause: str, drain_s: float, kill_s: float = KILL_S) -> None:
        """Take nothing new; give what runs so many seconds."""
        batcher = self._runner.batcher
        n_requests = 0 if batcher is None else len(batcher.seq_ids)
        if batcher is None:
            drain_s = 0.0  # a load is to end, not to go on
        log.info("daemon.draining", cause=cause, n_requests=n_requests, drain_s=drain_s)
        self._notifier.stopping(f"{n_requests} requests run for at most {drain_s} s")
        self._stop_listening()
        self._runner.stop()
        tasks.start_soon(self._end_drain, drain_s, kill_s)

    def _stop_listening(self) -> None:
        """Leave the path to whoever comes next; the server holds a socket of its own."""
        self._server.stop_accepting()
        if self._bound is not None:
            self._bound.close()

    async def _end_drain(self, drain_s: float, kill_s: float) -> None:
        await anyio.sleep(drain_s)
        self._runner.cancel_all()
        await anyio.sleep(kill_s)
        what = "load" if self._runner.batcher is None else "step"
        self._runner.give_up(f"the {what} in progress does not end")
        await self._server.close()
        self._exit_now(f"a {what} that does not end")

    def _exit_now(self, cause: str) -> None:
        """End without waiting for anything: a native call may never return."""
        log.error("daemon.killed", cause=cause, step_age_s=round(self._runner.watches.age_s, 1))
        if self._bound is not None:
            self._bound.close()
        if self._before_kill is not None:
            self._before_kill()
        os._exit(EXIT_INTERNAL)

    async def _serve_parent(self, tasks: TaskGroup, fd: int) -> None:
        """Serve the parent; when it has gone there is nobody left to serve."""
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        await self._server.serve_parent(sock)
        if not self._runner.is_stopping:
            self._stop(tasks, "parent has left", 0.0, LEFT_KILL_S)

    async def _watch_parent(self, tasks: TaskGroup, fd: int) -> None:
        """End with the parent, also while others still hold its end of the socket."""
        await until_parent_ends(fd)
        self._stop(tasks, "parent has ended", 0.0, ORPHAN_KILL_S)

    def _log_state(self) -> None:
        now = status(0, self._runner, self._server.n_connections, last=True)
        log.info("daemon.state", **state_facts(now))


async def _watch_path(bound: BoundSocket) -> None:
    """Say when the socket file was deleted: nobody new can reach us then."""
    while bound.still_ours():  # noqa: ASYNC110  # a deletion sets no event
        await anyio.sleep(UNLINK_CHECK_S)
    if bound.socket.fileno() >= 0:  # else it was us who took it away
        log.warning("daemon.socket_deleted", path=str(bound.path))


def start(
    config: Config,
    backend: str,
    last_native_lines: LastLines,
    on_load: LoadWatcher | None = None,
    before_kill: Callable[[], None] | None = None,
) -> int:
    """Run the daemon in an event loop of its own; return the exit status."""
    return_large_blocks()
    options: dict[str, object] = {}
    if backend == "asyncio":
        options["use_uvloop"] = _has_uvloop()

    async def run() -> int:
        exit_code = await run_daemon(config, last_native_lines, on_load, before_kill)
        for number in SIGNALS:  # the handlers are gone, and it is not a signal that has ended us
            signal.signal(number, signal.SIG_IGN)
        return exit_code

    return anyio.run(run, backend=backend, backend_options=options)


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401  # optional, and not needed with trio
    except ImportError:
        return False
    return True
