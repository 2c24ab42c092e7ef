"""Real daemons under a stand-in for systemd: what they tell it, and the sockets it passes."""

import signal
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest
from anyio import to_thread

from runnerd.client import CannotConnect, Client, RequestFailed, connect
from tests.daemon import PATIENCE_S
from tests.service_manager import Hearing, hearing, listening_at, service_process

pytestmark = pytest.mark.anyio

LOAD_TIMEOUT_S = 0.6
SHORT_LOAD = f"--load-timeout={LOAD_TIMEOUT_S}"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Hearing]:
    with hearing(str(tmp_path / "notify")) as manager:
        yield manager


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


@pytest.fixture
def sock(path: Path) -> Iterator[socket.socket]:
    with listening_at(path) as sock:
        yield sock


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    return await to_thread.run_sync(process.wait, PATIENCE_S)


async def ended(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    return await exit_code(process)


def kinds(messages: list[str]) -> Counter[str]:
    """Count the messages by what their first line sets."""
    return Counter(message.split("=")[0] for message in messages)


# --- the load ------------------------------------------------------------------------------


async def test_a_moving_load_gets_time_for_each_move_and_is_ready_once(
    manager: Hearing, sock: socket.socket, log_path: Path
) -> None:
    with service_process(
        [sock], manager.address, log_path, SHORT_LOAD, model="layers=0,load_ms=1000"
    ) as process:
        heard, gaps_s = [await manager.next()], []
        while "READY" not in heard[-1]:
            told_at = anyio.current_time()
            heard.append(await manager.next())
            gaps_s.append(anyio.current_time() - told_at)
        assert await ended(process) == 0
    loading = heard[:-1]
    assert all(text.startswith("EXTEND_TIMEOUT_USEC=600000\nSTATUS=loading: ") for text in loading)
    assert len(set(loading)) == len(loading)  # each of another figure
    assert max(gaps_s) < LOAD_TIMEOUT_S
    assert len(loading) > 1.0 / LOAD_TIMEOUT_S
    assert kinds(manager.so_far())["READY"] == 0


async def test_a_stuck_load_gets_no_more_time_and_the_log_says_where_it_was(
    manager: Hearing, sock: socket.socket, log_path: Path
) -> None:
    with service_process(
        [sock], manager.address, log_path, SHORT_LOAD, model="layers=0,load_ms=1000000"
    ) as process:
        await manager.until("loading: open, 0%")
        await anyio.sleep(1.5 * LOAD_TIMEOUT_S)  # what is not to come sets no event
        assert manager.so_far() == []
        process.terminate()
        assert await manager.next() == "STOPPING=1\nSTATUS=ending the load, which is at: open"
        process.terminate()
        assert await exit_code(process) == 70
        assert manager.so_far() == ["STATUS=failed: killed: SIGTERM"]
    assert '"load_phase":"open","load_fraction":0.0' in log_path.read_text()


# --- ready ---------------------------------------------------------------------------------


async def test_whoever_connects_at_any_time_gets_a_sane_answer(
    manager: Hearing, path: Path, log_path: Path
) -> None:
    states: Counter[str] = Counter()
    options = ["--socket", str(path)]
    with service_process(
        [], manager.address, log_path, *options, model="layers=0,load_ms=300"
    ) as process:
        with anyio.fail_after(PATIENCE_S):
            while states["ready"] < 20:
                try:
                    async with connect(path) as client:
                        states[(await client.status()).state] += 1
                except CannotConnect:
                    assert not states, "it was there before"
                    await anyio.sleep(0.001)  # between two attempts: any moment is tried
        assert await ended(process) == 0
    assert states["loading"]


# --- watchdog and reload -------------------------------------------------------------------


async def test_an_engine_that_hangs_gets_no_pings(
    manager: Hearing, sock: socket.socket, path: Path, log_path: Path
) -> None:
    with service_process(
        [sock],
        manager.address,
        log_path,
        "--step-timeout=0.5",
        model="layers=0,hang_at=5",
        watchdog_s=0.6,
    ) as process:
        await manager.until("READY=1")
        async with connect(path) as client, client.generate("x", shift=True) as stream:
            await anext(stream)
            await manager.until("STATUS=stalled: step in progress")
            await anyio.sleep(0.6)  # what is not to come sets no event
            assert manager.so_far() == []
            process.kill()
    assert "watchdog.withheld" in log_path.read_text()


async def test_a_hang_up_is_answered_in_every_state(
    manager: Hearing, sock: socket.socket, path: Path, log_path: Path
) -> None:
    with service_process(
        [sock], manager.address, log_path, model="layers=0,load_ms=300,step_ms=5"
    ) as process:
        await manager.until("loading")
        process.send_signal(signal.SIGHUP)
        heard = await manager.until("READY=1")
        assert "RELOADING" not in kinds(heard)
        assert (await manager.next()).startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert "there is no settings file" in await manager.next()
        async with connect(path) as client, client.generate("x", max_tokens=100) as stream:
            await anext(stream)
            process.send_signal(signal.SIGHUP)
            await manager.until("READY=1")
            process.terminate()
            await manager.until("STOPPING=1")
            process.send_signal(signal.SIGHUP)
            assert (await stream.completion()).finished.n_generated == 100
        assert await exit_code(process) == 0
    assert kinds(manager.so_far())["READY"] == 0
    assert "daemon.reload_ignored" in log_path.read_text()


async def test_a_drain_in_which_requests_progress_asks_for_time(
    manager: Hearing, sock: socket.socket, path: Path, log_path: Path
) -> None:
    with service_process(
        [sock], manager.address, log_path, "--drain=1.5", model="layers=0,step_ms=5"
    ) as process:
        await manager.until("READY=1")
        async with connect(path) as client, client.generate("x", shift=True) as stream:
            await anext(stream)
            process.terminate()
            heard = await manager.until("EXTEND_TIMEOUT_USEC=")
            assert heard[0] == "STOPPING=1\nSTATUS=draining: 1 request has 2 s left"
            extension_s = int(heard[-1].splitlines()[0].split("=")[1]) / 1e6
            assert 15.0 < extension_s < 1.5 + 15.0
            assert (await stream.completion()).finished.reason == "cancelled"
        assert await exit_code(process) == 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_hang_ups_at_any_time_from_the_start_on_end_nothing_and_never_outlast_the_stop(
    manager: Hearing, sock: socket.socket, log_path: Path, backend: str
) -> None:
    with service_process(
        [sock], manager.address, log_path, f"--async-backend={backend}"
    ) as process:
        with anyio.fail_after(PATIENCE_S):
            while not ignores_hang_up(process.pid):  # for as long, it is only an interpreter
                await anyio.sleep(0.001)
            heard: list[str] = []
            is_told = False
            while process.poll() is None:
                process.send_signal(signal.SIGHUP)
                heard += manager.so_far()
                if "READY" in kinds(heard) and not is_told:
                    is_told = True
                    process.terminate()
                await anyio.sleep(0.0003)  # a hang-up at any moment, also in one's answer
    assert process.returncode == 0
    heard += manager.so_far()
    stopping = [text.startswith("STOPPING=1") for text in heard].index(True)
    assert kinds(heard[stopping + 1 :]).keys() == {"STATUS"}


def ignores_hang_up(pid: int) -> bool:
    """Whether a process has begun to take care of SIGHUP."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name in ("SigIgn", "SigCgt") and int(mask, 16) & 1 << signal.SIGHUP - 1:
            return True
    return False


# --- passed sockets ------------------------------------------------------------------------


async def test_a_passed_socket_of_another_kind_is_no_start(
    manager: Hearing, log_path: Path
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as sock,
        service_process([sock], manager.address, log_path) as process,
    ):
        assert await exit_code(process) == 78
    (message,) = manager.so_far()
    assert "descriptor 3 ('unknown')" in message
    assert "descriptor 3 ('unknown')" in log_path.read_text()


@pytest.mark.parametrize(
    ("backend", "is_abstract"), [("asyncio", True), ("trio", False)], ids=["asyncio", "trio"]
)
async def test_clients_that_were_first_are_served_and_the_files_stay(
    tmp_path: Path, log_path: Path, backend: str, is_abstract: bool
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    address = "@runnerd-test-abstract" if is_abstract else str(tmp_path / "notify")
    with ExitStack() as stack:
        manager = stack.enter_context(hearing(address))
        sockets = [stack.enter_context(listening_at(path)) for path in paths]
        own_path = tmp_path / "own"
        n_served = 0

        async def ask(path: Path) -> None:
            nonlocal n_served
            async with connect(path) as client:
                assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3
                n_served += 1

        options = [f"--async-backend={backend}", f"--socket={own_path}"]
        async with anyio.create_task_group() as tasks:
            for path in paths * 3:
                tasks.start_soon(ask, path)
            await anyio.wait_all_tasks_blocked()  # all are in the kernel's queue
            process = stack.enter_context(
                service_process(sockets, manager.address, log_path, *options)
            )
            await manager.until("READY=1")
        await ask(own_path)
        assert n_served == 7
        children = psutil.Process(process.pid).children(recursive=True)
        assert children  # at least the log's relay
        for child in children:
            holds = {each.laddr for each in child.net_connections(kind="unix")}
            assert holds.isdisjoint({str(path) for path in [*paths, own_path]})
        assert await ended(process) == 0
        assert all(path.is_socket() for path in paths)
        assert not own_path.exists()
        for each in sockets:
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


@asynccontextmanager
async def asking_on_and_on(path: Path, n_clients: int) -> AsyncIterator[Counter[str]]:
    """Have clients connect, ask and leave in a loop; count what becomes of it."""
    outcomes: Counter[str] = Counter()
    is_over = anyio.Event()

    async def ask(client: Client) -> None:
        try:
            await client.complete("x", max_tokens=2)
            outcomes["answered"] += 1
        except RequestFailed as err:
            outcomes[err.failed.code] += 1

    async def loop() -> None:
        while not is_over.is_set():
            async with connect(path) as client:
                await ask(client)

    async with anyio.create_task_group() as tasks:
        for _ in range(n_clients):
            tasks.start_soon(loop)
        yield outcomes
        is_over.set()


async def test_a_restart_keeps_the_queue_and_every_client_gets_an_answer(
    manager: Hearing, sock: socket.socket, path: Path, log_path: Path
) -> None:
    lives = ("asyncio", "trio", "asyncio")
    with anyio.fail_after(3 * PATIENCE_S), ExitStack() as stack:
        async with asking_on_and_on(path, 5) as outcomes:
            for life, backend in enumerate(lives, start=1):
                process = stack.enter_context(
                    service_process([sock], manager.address, log_path, f"--async-backend={backend}")
                )
                await manager.until("READY=1")
                n_before = outcomes["answered"]
                while outcomes["answered"] < n_before + 10:
                    await anyio.sleep(0.01)  # what a client counts sets no event
                if life < len(lives):
                    assert await ended(process) == 0
        assert await ended(process) == 0
    assert outcomes["answered"] >= len(lives) * 10
    assert set(outcomes) <= {"answered", "shutting_down"}
