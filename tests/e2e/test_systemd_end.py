"""Under a real systemd: how a daemon ends, by wish and by force, and who comes after it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.abc import UNIXSocketStream

from runnerd.blocking import BlockingClient
from runnerd.blocking_streams import BlockingStream
from runnerd.client import ConnectionLost, RequestFailed, attach
from tests.e2e.systemd_lab import Lab, Units

SLOW = "layers=0,step_ms=10"
N_CLIENTS = 5


def says(path: Path, n_tokens: int = 8) -> str:
    with BlockingClient(path) as client:
        return client.complete("Once", max_tokens=n_tokens, temperature=0.0).text


def n_in_all(stream: BlockingStream) -> int:
    """Read to the end; return how many tokens there are, if it is the end that was asked for."""
    for _ in stream:
        pass
    assert stream.finished is not None
    assert stream.finished.reason == "length"
    return stream.finished.n_generated


# --- by wish --------------------------------------------------------------------------------


def test_streams_that_run_at_a_stop_end_whole_and_the_state_says_so(units: Units) -> None:
    instance = units(settings={"model": SLOW})
    instance.systemctl("start")
    with (
        BlockingClient(instance.path) as client,
        client.generate("one", max_tokens=150) as one,
        client.generate("two", max_tokens=150) as two,
    ):
        next(one)
        next(two)
        instance.systemctl("stop", "--no-block")
        instance.until("StatusText", "draining: 2 requests")
        assert instance.show("ActiveState") == "deactivating"
        assert [n_in_all(one), n_in_all(two)] == [150, 150]
    instance.systemctl("stop")  # waits for the end of the first one
    assert (instance.show("ActiveState"), instance.show("Result")) == ("inactive", "success")


def test_a_drain_with_requests_that_progress_outlives_the_stop_limit(units: Units) -> None:
    instance = units("TimeoutStopSec=1", {"model": SLOW})
    instance.systemctl("start")
    with BlockingClient(instance.path) as client, client.generate("x", max_tokens=200) as stream:
        next(stream)
        instance.systemctl("stop")
        assert n_in_all(stream) == 200
    assert (instance.show("ActiveState"), instance.show("Result")) == ("inactive", "success")


def test_a_second_sigterm_ends_a_drain_at_once(units: Units) -> None:
    instance = units(settings={"model": SLOW})
    instance.systemctl("start")
    with BlockingClient(instance.path) as client, client.generate("endless") as stream:
        next(stream)
        instance.systemctl("stop", "--no-block")
        instance.until("StatusText", "draining: 1 request")
        instance.kill("TERM")
        with pytest.raises((ConnectionLost, RequestFailed)):
            for _ in stream:
                pass
    instance.systemctl("stop")  # waits for the end of the first one
    assert instance.show("ActiveState") == "failed"
    assert instance.show("ExecMainStatus") == "70"
    assert "daemon.killed" in instance.messages()


def test_a_daemon_whose_engine_hangs_is_shot_when_the_stop_limit_is_over(units: Units) -> None:
    instance = units("TimeoutStopSec=1\nWatchdogSec=0", {"model": "layers=0,hang_at=3"})
    instance.systemctl("start")
    with BlockingClient(instance.path) as client, client.generate("x") as stream:
        next(stream)
        instance.systemctl("stop")
        with pytest.raises((ConnectionLost, RequestFailed)):
            for _ in stream:
                pass
    assert (instance.show("ActiveState"), instance.show("Result")) == ("failed", "timeout")
    assert "Killing process" in instance.messages()


# --- by force -------------------------------------------------------------------------------


def test_a_daemon_that_stands_still_is_shot_by_the_watchdog_and_started_again(
    units: Units,
) -> None:
    instance = units("WatchdogSec=2")
    instance.systemctl("start")
    instance.kill("STOP")
    assert len(says(instance.path)) == 8  # by the next one
    assert instance.show("NRestarts") == "1"
    assert "Watchdog timeout" in instance.messages()


def test_a_hanging_engine_is_shot_by_the_watchdog_once_its_step_has_had_its_time(
    units: Units,
) -> None:
    instance = units("WatchdogSec=2", {"model": "layers=0,hang_at=6", "step-timeout": 0.5})
    instance.systemctl("start")
    with BlockingClient(instance.path) as client, client.generate("x") as stream:
        next(stream)
        with pytest.raises((ConnectionLost, RequestFailed)):
            for _ in stream:
                pass
    assert len(says(instance.path, 2)) == 2
    assert instance.show("NRestarts") == "1"
    assert "Watchdog timeout" in instance.messages()


@pytest.mark.soak  # that it is told as alive all the while is seen without systemd, too
def test_a_long_step_that_is_allowed_gets_nobody_shot(units: Units) -> None:
    instance = units("WatchdogSec=2", {"model": "layers=0,step_ms=2500", "step-timeout": 10})
    instance.systemctl("start")
    assert len(says(instance.path, 1)) == 1
    assert instance.show("NRestarts") == "0"


def test_clients_that_queue_at_a_crash_are_served_by_the_next_daemon(units: Units) -> None:
    instance = units("WatchdogSec=0")
    instance.systemctl("start")
    instance.kill("STOP")

    async def queue() -> list[str]:
        texts: list[str] = []

        async def ask(stream: UNIXSocketStream) -> None:
            async with attach(stream) as client:
                texts.append((await client.complete("x", max_tokens=8, temperature=0.0)).text)

        async with anyio.create_task_group() as tasks:
            for _ in range(N_CLIENTS):
                tasks.start_soon(ask, await anyio.connect_unix(instance.path))
            await to_thread.run_sync(instance.kill, "KILL")
        return texts

    assert [len(text) for text in anyio.run(queue)] == [8] * N_CLIENTS
    assert instance.show("NRestarts") == "1"


def test_clients_that_queue_in_a_drain_are_served_by_the_next_daemon(units: Units) -> None:
    instance = units(settings={"model": SLOW})
    instance.systemctl("start")
    with BlockingClient(instance.path) as client, client.generate("x", max_tokens=120) as stream:
        next(stream)
        instance.systemctl("restart", "--no-block")
        instance.until("StatusText", "draining: 1 request")
        with ThreadPoolExecutor() as pool:
            texts = list(pool.map(says, [instance.path] * N_CLIENTS))
        assert n_in_all(stream) == 120
    assert [len(text) for text in texts] == [8] * N_CLIENTS
    assert instance.messages().count("daemon.ready") == 2


def test_a_daemon_beyond_its_memory_is_killed_and_its_clients_are_told(
    lab: Lab, units: Units
) -> None:
    if not lab.limits_memory:
        pytest.skip("the lab's systemd has no memory controller")
    instance = units("MemoryMax=150M\nMemorySwapMax=0")
    instance.systemctl("start")
    with BlockingClient(instance.path) as client:
        with pytest.raises(ConnectionLost):
            client.tokenize("x" * 15_000_000)
    assert len(says(instance.path)) == 8
    assert instance.show("NRestarts") == "1"
    assert "Main process exited, code=killed, status=9/KILL" in instance.messages()


# --- meanwhile ------------------------------------------------------------------------------


def test_a_reload_takes_what_it_can_and_a_bad_file_changes_nothing(units: Units) -> None:
    instance = units()
    instance.systemctl("start")
    with BlockingClient(instance.path) as client:
        pid = client.status().pid
        instance.set(engine="reference", model="layers=0", max_queue=3)
        instance.systemctl("reload")
        instance.until("StatusText", "settings read")
        assert client.status().max_queue == 3
        instance.set(engine="reference", model="layers=0", max_queue=-1)
        instance.systemctl("reload")
        instance.until("StatusText", "settings as before: ")
        assert (client.status().max_queue, client.status().pid) == (3, pid)
    messages = instance.messages()
    assert "daemon.reloaded" in messages
    [failed] = [line for line in messages.splitlines() if "daemon.reload_failed" in line]
    assert "max-queue -1" in failed
    assert "max-queue -1" in instance.show("StatusText")
    assert "serving reference" in instance.show("StatusText")
    assert instance.show("ActiveState") == "active"


def test_no_word_of_a_prompt_is_in_the_journal_at_any_level(lab: Lab, units: Units) -> None:
    instance = units(settings={"log-level": "debug"})
    instance.systemctl("start")
    with BlockingClient(instance.path) as client:
        client.complete("xyzzy", max_tokens=8)
        client.tokenize("xyzzy")
        with pytest.raises(RequestFailed):
            client.complete("xyzzy", grammar="xyzzy")
    entries = lab.journal(instance.service)
    assert "xyzzy" not in json.dumps(entries)
    told = [each["RUNNERD_EVENT"] for each in entries if each.get("RUNNERD_CONNECTION") == "1"]
    assert told == ["request.finished", "request.finished", "request.failed"]
