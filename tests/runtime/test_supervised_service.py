"""The daemon's life as a service: what the manager hears, sockets it passed, SIGHUP."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from runnerd.client import RequestFailed, connect
from runnerd.config import Config
from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig
from runnerd.errors import ConfigError
from runnerd.reload_task import Reload, ReloadTask
from runnerd.runner import Runner
from runnerd.supervisor import run_daemon
from runnerd.systemd.environment import PassedSocket, ServiceEnvironment
from runnerd.systemd.notifier import Notifier
from tests.daemon import PATIENCE_S
from tests.service_manager import Hearing, hearing, listening_at

pytestmark = pytest.mark.anyio


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Hearing]:
    with hearing(str(tmp_path / "notify")) as manager:
        yield manager


@pytest.fixture
def sock(tmp_path: Path) -> Iterator[socket.socket]:
    with listening_at(tmp_path / "socket") as sock:
        yield sock


def config_of(options: str = "layers=0") -> Config:
    return Config(EngineConfig(options, "reference", 2), has_passed_sockets=True)


def passed(*socks: socket.socket) -> tuple[PassedSocket, ...]:
    """Pass duplicates, as a service manager does."""
    return tuple(PassedSocket(sock.dup(), f"no. {n}") for n, sock in enumerate(socks))


@asynccontextmanager
async def service(
    manager: Hearing,
    *socks: socket.socket,
    own_path: Path | None = None,
    options: str = "layers=0",
    reload: Reload | None = None,
    watchdog_s: float = 0.0,
) -> AsyncIterator[list[str]]:
    """Run a daemon until the end of the block; yield what was heard until it was ready."""
    environment = ServiceEnvironment(manager.address, watchdog_s, passed(*socks))
    exit_codes: list[int] = []

    async def run() -> None:
        config = replace(config_of(options), socket_path=own_path)
        code = await run_daemon(config, list, service=environment, reload=reload)
        exit_codes.append(code)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            yield await manager.until("READY=1")
            os.kill(os.getpid(), signal.SIGTERM)
    assert exit_codes == [0]
    assert all(each.socket.fileno() < 0 for each in environment.sockets)


async def test_a_life_is_told_from_the_load_to_the_end(
    manager: Hearing, sock: socket.socket
) -> None:
    async with service(manager, sock, options="layers=0,load_ms=100") as heard:
        pass
    assert all("STATUS=loading: " in text for text in heard[:-1])
    assert heard[-1] == "READY=1\nSTATUS=serving reference"
    draining = "STOPPING=1\nSTATUS=draining: no request is left"
    assert manager.so_far() == [draining, "STATUS=stopped"]


async def test_pings_begin_when_it_is_ready(manager: Hearing, sock: socket.socket) -> None:
    options = "layers=0,load_ms=300"
    async with service(manager, sock, options=options, watchdog_s=0.3) as heard:
        assert "WATCHDOG=1" not in heard
        assert await manager.next() == "WATCHDOG=1"


async def test_every_passed_socket_is_served_and_outlives_the_daemon(
    manager: Hearing, tmp_path: Path
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with listening_at(paths[0]) as a, listening_at(paths[1]) as b:
        for _ in range(2):
            async with service(manager, a, b):
                for path in paths:
                    async with connect(path) as client:
                        assert (await client.status()).state == "ready"
        assert all(path.is_socket() for path in paths)


async def test_clients_come_in_while_the_model_loads(
    manager: Hearing, sock: socket.socket, tmp_path: Path
) -> None:
    async with anyio.create_task_group() as tasks:
        states = []

        async def ask() -> None:
            async with connect(tmp_path / "socket") as client:
                states.append((await client.status()).state)

        tasks.start_soon(ask)
        async with service(manager, sock, options="layers=0,load_ms=500"):
            assert states == ["loading"]


async def test_the_first_connection_after_ready_is_served(manager: Hearing, tmp_path: Path) -> None:
    path = tmp_path / "own"
    async with service(manager, own_path=path):
        async with connect(path) as client:
            assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3
    assert not path.exists()


async def test_who_is_in_the_queue_at_the_end_is_left_to_the_successor(
    manager: Hearing, sock: socket.socket, tmp_path: Path
) -> None:
    async with service(manager, sock):
        pass
    async with anyio.create_task_group() as tasks:
        is_answered = anyio.Event()

        async def ask() -> None:
            async with connect(tmp_path / "socket") as client:
                assert (await client.complete("x", max_tokens=2)).finished.n_generated == 2
            is_answered.set()

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()  # nobody serves, and nobody is refused
        async with service(manager, sock):
            await is_answered.wait()


async def told_by_one_that_ends(manager: Hearing, config: Config, exit_code: int) -> list[str]:
    """Return what is heard of a daemon that ends by itself."""
    with anyio.fail_after(PATIENCE_S):
        environment = ServiceEnvironment(manager.address, watchdog_s=0.3)
        assert await run_daemon(config, list, service=environment) == exit_code
    return manager.so_far()


async def test_a_setting_that_cannot_work_is_told(manager: Hearing) -> None:
    heard = await told_by_one_that_ends(manager, replace(config_of(), max_queue=-1), 78)
    (message,) = heard
    assert message.startswith("STATUS=failed: max-queue -1 is not between")


async def test_a_path_that_cannot_be_had_is_told_with_the_number_of_its_error(
    manager: Hearing,
) -> None:
    config = replace(config_of(), socket_path=Path("/proc/runnerd"))
    (message,) = await told_by_one_that_ends(manager, config, 78)
    assert message.startswith("STATUS=failed: cannot ")
    assert message.endswith(f"\nERRNO={errno.ENOENT}")


async def test_a_failing_load_is_never_ready_and_leaves_the_reason(manager: Hearing) -> None:
    config = config_of("layers=0,load_ms=100,fail_load=1")
    heard = await told_by_one_that_ends(manager, config, 65)
    assert all(text.startswith("EXTEND_TIMEOUT_USEC=") for text in heard[:-1])
    assert heard[-1].startswith("STATUS=failed: reference engine: ")


async def test_an_engine_that_breaks_leaves_the_reason(
    manager: Hearing, sock: socket.socket, tmp_path: Path
) -> None:
    environment = ServiceEnvironment(manager.address, sockets=passed(sock))

    async def ask() -> None:
        async with connect(tmp_path / "socket") as client:
            with pytest.raises(RequestFailed, match="engine_failed"):
                await client.complete("x")

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            config = config_of("layers=0,broken_at=3")
            assert await run_daemon(config, list, service=environment) == 70
    assert manager.so_far()[-1] == "STATUS=failed: reference engine: decode 3 is to break"


async def test_what_the_environment_has_wrong_is_in_the_log(sock: socket.socket) -> None:
    environment = ServiceEnvironment(sockets=passed(sock), warnings=("WATCHDOG_USEC='x'",))
    with capture_logs() as lines:
        await run_daemon(replace(config_of(), max_queue=-1), list, service=environment)
    assert lines[0]["event"] == "systemd.misunderstood"
    assert lines[0]["text"] == "WATCHDOG_USEC='x'"


# --- SIGHUP --------------------------------------------------------------------------------


async def hang_up(manager: Hearing) -> str:
    """Send ourselves a SIGHUP; return what became of it."""
    os.kill(os.getpid(), signal.SIGHUP)
    heard = await manager.until("READY=1")
    assert heard[-2].startswith("RELOADING=1\nMONOTONIC_USEC=")
    return heard[-1].removeprefix("READY=1\nSTATUS=serving reference; ")


async def test_new_settings_hold_and_the_others_are_named(
    manager: Hearing, sock: socket.socket
) -> None:
    def reload() -> Config:
        return replace(config_of("layers=1"), max_queue=7)

    with capture_logs() as lines:
        async with service(manager, sock, reload=reload):
            outcome = await hang_up(manager)
    (line,) = [line for line in lines if line["event"] == "daemon.reloaded"]
    assert line["applied"] == ["max-queue"]
    assert line["waiting"] == ["model"]
    assert outcome == "settings read; for a restart wait: model"


async def test_settings_that_cannot_be_read_change_nothing_and_it_serves_on(
    manager: Hearing, sock: socket.socket, tmp_path: Path
) -> None:
    def reload() -> Config:
        raise ConfigError("runnerd.toml: max-queue -1")

    with capture_logs() as lines:
        async with service(manager, sock, reload=reload):
            assert await hang_up(manager) == "settings as before: runnerd.toml: max-queue -1"
            async with connect(tmp_path / "socket") as client:
                assert (await client.complete("x", max_tokens=2)).finished.n_generated == 2
    assert "daemon.reload_failed" in [line["event"] for line in lines]


async def test_a_reload_that_crashes_is_no_reason_to_end(
    manager: Hearing, sock: socket.socket
) -> None:
    def reload() -> Config:
        raise RuntimeError("a bug")

    with capture_logs() as lines:
        async with service(manager, sock, reload=reload):
            assert "an internal error" in await hang_up(manager)
            assert "an internal error" in await hang_up(manager)
    assert [line["event"] for line in lines].count("daemon.reload_failed") == 2


async def test_without_a_settings_file_a_hang_up_says_so(
    manager: Hearing, sock: socket.socket
) -> None:
    async with service(manager, sock):
        assert await hang_up(manager) == "there is no settings file to read again"


async def test_after_the_end_has_begun_nothing_is_read_and_nothing_told(manager: Hearing) -> None:
    runner = Runner(config_of(), open_engine)
    reload_task = ReloadTask(None, runner, Notifier(manager.address))
    reload_task.ask()
    runner.stop()  # before it has got round to it
    with anyio.fail_after(PATIENCE_S):
        await reload_task.run()
    assert manager.so_far() == []


@pytest.fixture
def hang_up_is_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_is_ignored")
async def test_a_terminals_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    config = replace(config_of(), socket_path=tmp_path / "socket", has_passed_sockets=False)
    handlers: list[object] = []

    def on_load(*_: object) -> None:
        if not handlers:
            handlers.append(signal.getsignal(signal.SIGHUP))
            os.kill(os.getpid(), signal.SIGTERM)

    with anyio.fail_after(PATIENCE_S):
        assert await run_daemon(config, list, on_load) == 0
    assert handlers == [signal.SIG_IGN]


# A daemon whose settings never come, for it is told to end while they are read.
STUCK = """
import os, signal, sys, threading
from pathlib import Path
import structlog
from runnerd import supervisor
from runnerd.config import Config
from runnerd.engine.base import EngineConfig

def hang_up(logger, method, event):
    if event["event"] == "daemon.ready":
        os.kill(os.getpid(), signal.SIGHUP)
    raise structlog.DropEvent

def reload():
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()

structlog.configure(processors=[hang_up])
config = Config(EngineConfig("layers=0", "reference", 2), Path(sys.argv[1]))
sys.exit(supervisor.start(config, supervisor.NO_SERVICE, sys.argv[2], list, reload=reload))
"""


def test_settings_that_never_come_hold_up_no_exit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, str(tmp_path / "socket"), "asyncio"]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == 0


async def test_a_reload_that_the_end_overtakes_is_never_ready_again(
    manager: Hearing, sock: socket.socket
) -> None:
    may_go_on = threading.Event()

    def reload() -> Config:
        assert may_go_on.wait(PATIENCE_S)
        return config_of()

    async with service(manager, sock, reload=reload):
        os.kill(os.getpid(), signal.SIGHUP)
        await manager.until("RELOADING=1")
    may_go_on.set()
    draining = "STOPPING=1\nSTATUS=draining: no request is left"
    assert manager.so_far() == [draining, "STATUS=stopped"]
