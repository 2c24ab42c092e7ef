"""The daemon's life from start to exit status, with signals sent to ourselves."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from structlog.testing import capture_logs

from runnerd import server
from runnerd.client import CannotConnect, Client, RequestFailed, attach, connect
from runnerd.config import Config
from runnerd.engine.base import EngineConfig
from runnerd.entrances import watch_path
from runnerd.listener import bind_unix
from runnerd.supervisor import LastLines, run_daemon
from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.messages import DaemonState, Generate
from tests.daemon import PATIENCE_S, running_daemon

pytestmark = pytest.mark.anyio

# A daemon whose load is silent for a minute, so that a second signal finds it alive.
KILLED = """
import os, signal, sys
from pathlib import Path
from runnerd import supervisor
from runnerd.config import Config
from runnerd.engine.base import EngineConfig
from runnerd.log import configure_logging
from runnerd.native_log import NativeLogRelay

relay = NativeLogRelay.start(configure_logging("info", "json"))
os.write(2, b"chat of a library\\n")

def on_load(state, phase, fraction):
    os.kill(os.getpid(), signal.SIGTERM)

config = Config(EngineConfig("layers=0,load_ms=1200000", "reference", 2), Path(sys.argv[1]))
service = supervisor.NO_SERVICE
supervisor.start(config, service, "asyncio", relay.last_lines, on_load, before_kill=relay.stop)
"""

# A daemon that gets a SIGTERM at each of the log events that it is given.
SIGNALLED = """
import os, signal, sys
from pathlib import Path
import structlog
from runnerd import supervisor
from runnerd.config import Config
from runnerd.engine.base import EngineConfig

def raise_signal(logger, method, event):
    if event["event"] in sys.argv[2:]:
        os.kill(os.getpid(), signal.SIGTERM)
    raise structlog.DropEvent

structlog.configure(processors=[raise_signal])
config = Config(EngineConfig("layers=0", "reference", 2), Path(sys.argv[1]))
exit_code = supervisor.start(config, supervisor.NO_SERVICE, "asyncio", list)
if "afterwards" in sys.argv:
    for number in supervisor.SIGNALS:
        os.kill(os.getpid(), number)
sys.exit(exit_code)
"""


@dataclass
class Run:
    path: Path
    last_lines: LastLines = list
    exit_code: int | None = None

    async def run(self, config: Config) -> None:
        self.exit_code = await run_daemon(config, self.last_lines, self.on_load)
        self.ended.set()

    def __post_init__(self) -> None:
        self.states: list[DaemonState] = []
        self.changed = anyio.Event()
        self.ended = anyio.Event()

    def on_load(self, state: DaemonState, phase: str, fraction: float) -> None:
        self.states.append(state)
        if state not in ("starting", "loading"):
            self.changed.set()


def config_of(path: Path, options: str = "layers=0") -> Config:
    return Config(EngineConfig(options, "reference", 2), path, drain_s=20.0)


@asynccontextmanager
async def supervised(
    options: str = "layers=0", last_lines: LastLines = list, **changes: object
) -> AsyncIterator[Run]:
    """Run a daemon until it ends by itself; the block must see to that."""
    with TemporaryDirectory() as folder:
        run = Run(Path(folder, "socket"), last_lines)
        config = replace(config_of(run.path, options), **changes)  # type: ignore[arg-type]
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.run, config)
                await run.changed.wait()
                yield run
        assert list(Path(folder).iterdir()) == []


async def ended_by(client: Client, number: signal.Signals) -> None:
    """Send ourselves a signal; wait until the daemon has taken it."""
    os.kill(os.getpid(), number)
    with pytest.raises(RequestFailed, match="shutting_down"):
        while True:
            await client.complete("x", max_tokens=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_requests_finish_and_exits_with_0(
    number: signal.Signals,
) -> None:
    async with supervised("layers=0,step_ms=2") as run, connect(run.path) as client:
        async with client.generate("x", max_tokens=100) as stream:
            await anext(stream)
            await ended_by(client, number)
            with pytest.raises(CannotConnect):  # no file, or nobody behind it
                async with connect(run.path):
                    pass
            done = await stream.completion()
            assert (done.finished.reason, done.finished.n_generated) == ("length", 100)
    assert run.exit_code == 0


async def test_after_the_drain_what_still_runs_is_cancelled() -> None:
    async with supervised("layers=0,step_ms=2", drain_s=0.2) as run, connect(run.path) as client:
        async with client.generate("x", shift=True) as stream:
            await anext(stream)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (await stream.completion()).finished.reason == "cancelled"
    assert run.exit_code == 0


async def test_a_client_that_reads_nothing_delays_the_exit_by_less_than_a_second() -> None:
    wire = ClientConnection()
    request = Generate(1, "x", shift=True, return_tokens=True)
    async with supervised("layers=0", drain_s=0.2) as run:
        async with await anyio.connect_unix(run.path) as deaf, connect(run.path) as client:
            await deaf.send(wire.hello() + wire.send(request))
            n_before, n_after = -1, 0
            while n_after != n_before + 20:  # until its sequence is paused, and generates no more
                n_before = (await client.status()).n_generated_tokens
                await client.complete("y", max_tokens=20, temperature=0.0)
                n_after = (await client.status()).n_generated_tokens
            started_at = anyio.current_time()
            os.kill(os.getpid(), signal.SIGTERM)
            await run.ended.wait()
    assert anyio.current_time() - started_at < 0.2 + 1.0
    assert run.exit_code == 0


async def test_an_idle_daemon_ends_at_once_though_clients_are_connected() -> None:
    async with supervised() as run, connect(run.path) as client:
        async with client.subscribe(3600) as statuses:
            await anext(statuses)
            started_at = anyio.current_time()
            os.kill(os.getpid(), signal.SIGTERM)
            while not (await anext(statuses)).last:
                pass
    assert run.exit_code == 0
    assert anyio.current_time() - started_at < 1.5


async def test_who_has_long_been_connected_and_asks_nothing_delays_no_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "UNASKED_S", 10 * PATIENCE_S)
    async with AsyncExitStack() as clients, running_daemon() as daemon:
        await clients.enter_async_context(await anyio.connect_unix(daemon.path))
        await daemon.until(lambda: daemon.server.n_connections == 1)
        (session,) = daemon.server._sessions.values()
        session.opened_at -= 10 * PATIENCE_S
        ends_at = anyio.current_time()
    assert anyio.current_time() - ends_at < PATIENCE_S


async def test_who_has_just_connected_may_ask_late_and_is_answered() -> None:
    wire = ClientConnection()
    async with supervised() as run, await anyio.connect_unix(run.path) as late:
        await late.send(wire.hello())
        await late.receive()
        os.kill(os.getpid(), signal.SIGTERM)
        await until_nobody_listens(run.path)
        await anyio.sleep(2 * server.LINGER_S)  # what does not end sets no event
        await late.send(wire.send(Generate(1, "x")))
        assert b"shutting_down" in await late.receive()
    assert run.exit_code == 0


async def until_nobody_listens(path: Path) -> None:
    with anyio.fail_after(PATIENCE_S):
        while path.exists():
            await anyio.sleep(0.001)  # the removal of a file sets no event


async def test_a_signal_during_the_load_ends_it_with_0() -> None:
    with TemporaryDirectory() as folder, anyio.fail_after(PATIENCE_S):
        run = Run(Path(folder, "socket"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run, config_of(run.path, "layers=0,load_ms=3000"))
            while "loading" not in run.states:
                await anyio.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGTERM)
    assert run.exit_code == 0


async def test_a_load_that_is_told_to_stop_has_no_time_to_drain() -> None:
    with TemporaryDirectory() as folder, anyio.fail_after(PATIENCE_S), capture_logs() as lines:
        run = Run(Path(folder, "socket"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run, config_of(run.path, "layers=0,load_ms=3000"))
            while "loading" not in run.states:
                await anyio.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGTERM)
    assert [line["drain_s"] for line in lines if line["event"] == "daemon.draining"] == [0.0]
    assert run.exit_code == 0


def test_a_second_signal_ends_the_log_of_a_load_in_good_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "socket")]
    done = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 70
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == [
        "daemon.starting",
        "daemon.draining",
        "daemon.killed",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "moments",
    ["daemon.starting", "daemon.ready daemon.stopped", "daemon.ready afterwards"],
)
def test_a_signal_at_the_very_start_or_end_leaves_no_file(tmp_path: Path, moments: str) -> None:
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path / "socket"), *moments.split()]
    done = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(tmp_path.iterdir()) == []


async def test_a_first_signal_amid_the_last_answers_costs_nobody_theirs() -> None:
    def last_lines() -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return []

    async with supervised("layers=0,broken_at=3", last_lines) as run, connect(run.path) as client:
        with pytest.raises(RequestFailed, match="engine_failed"):
            await client.complete("x")
    assert run.exit_code == 70


async def test_clients_hear_of_a_failure_while_its_cause_is_still_sought() -> None:
    is_told = threading.Event()
    was_told: list[bool] = []

    def last_lines() -> list[str]:
        was_told.append(is_told.wait(PATIENCE_S / 2))
        return []

    async with supervised("layers=0,broken_at=3", last_lines) as run, connect(run.path) as client:
        with pytest.raises(RequestFailed, match="engine_failed"):
            await client.complete("x")
        is_told.set()
    assert (run.exit_code, was_told) == (70, [True])


@pytest.mark.parametrize("is_ours", [True, False])
async def test_only_a_socket_file_that_others_deleted_is_worth_a_warning(
    tmp_path: Path, is_ours: bool
) -> None:
    with capture_logs() as lines, bind_unix(tmp_path / "socket") as bound:
        if is_ours:
            bound.close()
        else:
            bound.path.unlink()
        await watch_path(bound)
    assert [line["event"] for line in lines] == ([] if is_ours else ["daemon.socket_deleted"])


async def test_a_failed_load_is_told_and_gives_65() -> None:
    with TemporaryDirectory() as folder, anyio.fail_after(PATIENCE_S):
        run = Run(Path(folder, "socket"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run, config_of(run.path, "layers=0,load_ms=300,fail_load=1"))
            await anyio.wait_all_tasks_blocked()
        assert run.exit_code == 65
        assert run.states[-1] == "failed"
        assert list(Path(folder).iterdir()) == []


async def test_a_broken_engine_gives_70_after_everybody_was_told() -> None:
    async with supervised("layers=0,broken_at=3") as run, connect(run.path) as client:
        with pytest.raises(RequestFailed, match="engine_failed"):
            await client.complete("x")
    assert run.exit_code == 70


async def test_what_parents_hand_down_is_served_until_they_close_it() -> None:
    ours, theirs = socket.socketpair()
    config = Config(EngineConfig("layers=0", "reference", 2), inherited_fd=theirs.detach())
    run = Run(Path())
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run, config)
            async with attach(await anyio.abc.UNIXSocketStream.from_socket(ours)) as client:
                assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3
                async with client.generate("x", shift=True) as stream:
                    await anext(stream)
    assert run.exit_code == 0


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ("layers=x", {}),
        ("nonsense=1", {}),
        ("layers=0", {"max_queue": -1}),
        ("layers=0", {"socket_path": Path("/nonexistent/socket")}),
        ("layers=0", {"inherited_fd": 10**6}),
    ],
)
async def test_a_setting_that_cannot_work_gives_78(
    options: str, changes: dict[str, object]
) -> None:
    with TemporaryDirectory() as folder:
        config = replace(config_of(Path(folder, "socket"), options), **changes)  # type: ignore[arg-type]
        assert await run_daemon(config, list) == 78
        assert list(Path(folder).iterdir()) == []


async def test_a_path_that_somebody_serves_is_left_to_them(tmp_path: Path) -> None:
    with bind_unix(tmp_path / "socket") as bound:
        assert await run_daemon(config_of(bound.path), list) == 78
        assert bound.still_ours()


async def test_the_next_daemon_can_have_the_path_while_this_one_drains() -> None:
    async with supervised("layers=0,step_ms=2") as run, connect(run.path) as client:
        async with client.generate("x", shift=True) as stream:
            await anext(stream)
            await ended_by(client, signal.SIGTERM)
            with closing(socket.socket(socket.AF_UNIX)) as sock:
                sock.bind(str(run.path))
                inode = run.path.stat().st_ino
                await anext(stream)
                assert run.path.stat().st_ino == inode
            run.path.unlink()
    assert run.exit_code == 0


async def test_the_load_is_told_until_it_is_over() -> None:
    async with supervised("layers=0,load_ms=100") as run:
        assert run.states[-1] == "ready"
        assert set(run.states) <= {"starting", "loading", "ready"}
        os.kill(os.getpid(), signal.SIGUSR1)  # only logs the state
        os.kill(os.getpid(), signal.SIGTERM)
