"""Parents of all kinds, and how they come to their end: no child may outlive one."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import anyio
import psutil
import pytest
from anyio.abc import UNIXSocketStream

from runnerd.client import attach
from runnerd.launcher import launch
from tests.own_children import own_children
from tests.processes import COMMAND, Family, needs_model

GONE_S = 1.5  # the promise is a second; this machine may be busy
PATIENCE_S = 30.0

# A parent that tells its child's pid, and says a word in each stage of the child's life.
PARENT = """
import anyio, os, sys
from runnerd.launcher import launch

async def main():
    options = ["--engine=reference"]
    async with launch("layers=0,step_ms=10,load_ms={load_ms}", options=options) as runner:
        print(runner.pid, flush=True)
        {before}
        await runner.ready()
        async with runner.client.generate("hello", shift=True) as stream:
            await anext(stream)
            print("generating", flush=True)
            await anyio.sleep_forever()

anyio.run(main, backend="{backend}")
"""
# One that has a child of its own, which inherits all that is open: a fork without an exec.
FORKS = """
        if os.fork() == 0:
            import time
            time.sleep(60)
            os._exit(0)
"""


def parent_of(load_ms: int = 0, before: str = "pass", backend: str = "asyncio") -> list[str]:
    text = PARENT.format(load_ms=load_ms, before=before.strip("\n").lstrip(), backend=backend)
    return [sys.executable, "-c", text]


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], Family]]:
    """Run a parent in a group of its own; give the family of its daemon."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            assert parent.stdout is not None
            yield parent, Family(int(parent.stdout.readline()))
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def next_line(parent: subprocess.Popen[str]) -> str:
    assert parent.stdout is not None
    return parent.stdout.readline().strip()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_daemon_in_the_middle_of_a_request_ends_with_its_parent(backend: str) -> None:
    with started(parent_of(backend=backend)) as (parent, daemon):
        assert next_line(parent) == "generating"
        parent.kill()
        assert daemon.has_ended(GONE_S)


def test_a_daemon_in_its_load_ends_with_its_parent() -> None:
    with started(parent_of(load_ms=20_000)) as (parent, daemon):
        parent.kill()
        assert daemon.has_ended(GONE_S)


def test_a_daemon_ends_with_its_parent_though_others_hold_its_socket() -> None:
    with started(parent_of(before=FORKS)) as (parent, daemon):
        assert next_line(parent) == "generating"
        parent.kill()
        assert daemon.has_ended(GONE_S)


def test_a_daemon_ends_with_a_parent_that_nobody_reaps() -> None:
    with started(parent_of()) as (parent, daemon):
        assert next_line(parent) == "generating"
        os.kill(parent.pid, signal.SIGKILL)
        assert daemon.has_ended(GONE_S)
        assert psutil.Process(parent.pid).status() == psutil.STATUS_ZOMBIE


def test_a_daemon_that_is_stopped_ends_with_its_parent() -> None:
    with started(parent_of()) as (parent, daemon):
        assert next_line(parent) == "generating"
        os.kill(daemon.pids[0], signal.SIGSTOP)
        parent.kill()
        assert daemon.has_ended(2 * GONE_S)


def test_a_daemon_outlives_a_stop_of_its_parent() -> None:
    with started(parent_of()) as (parent, daemon):
        assert next_line(parent) == "generating"
        os.kill(parent.pid, signal.SIGSTOP)
        assert not daemon.has_ended(2 * GONE_S)


@pytest.mark.anyio
async def test_a_daemon_outlives_the_thread_that_has_started_it() -> None:
    ours, theirs = socket.socketpair()
    fds = [theirs.fileno(), os.pidfd_open(os.getpid())]
    is_served = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        where = [f"--fd={fds[0]}", f"--parent-fd={fds[1]}"]
        command = [*COMMAND, "serve", *where, "--engine=reference", "layers=0"]
        started.append(subprocess.Popen(command, pass_fds=fds, stderr=subprocess.DEVNULL))
        is_served.wait(PATIENCE_S)

    thread = threading.Thread(target=start)
    thread.start()
    async with attach(await UNIXSocketStream.from_socket(ours)) as client:
        theirs.close()
        os.close(fds[1])
        await client.model()  # it has long asked to be told of our end
        is_served.set()
        await anyio.to_thread.run_sync(thread.join)
        assert (await client.complete("hello", max_tokens=3)).finished.n_generated == 3
    assert await anyio.to_thread.run_sync(started[0].wait) == 0


LONG_PASS = """
import anyio, os, sys
from runnerd.launcher import launch
from runnerd.models import resolve_model

async def main():
    async with launch(resolve_model("smollm2")) as runner:
        print(runner.pid, flush=True)
        await runner.ready()
        print("ready", flush=True)
        await runner.client.complete("word " * 3000, max_tokens=1)

anyio.run(main)
"""


@needs_model
@pytest.mark.llama
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_real_model_in_its_load_or_a_long_pass_ends_with_its_parent(is_loaded: bool) -> None:
    with started([sys.executable, "-c", LONG_PASS]) as (parent, daemon):
        if is_loaded:
            assert next_line(parent) == "ready"
        time.sleep(0.5)  # amid what takes seconds
        parent.kill()
        assert daemon.has_ended(GONE_S)


# --- at any moment --------------------------------------------------------------------------


def kill_at_a_random_moment(rng: Random) -> None:
    load_ms = rng.choice([0, 0, 200, 1000])
    with started(parent_of(load_ms, backend=rng.choice(["asyncio", "trio"]))) as (parent, daemon):
        time.sleep(rng.uniform(0.0, 1.0))  # any moment is as good as another
        parent.kill()
        assert daemon.has_ended(GONE_S)


def left_over() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "runnerd" in name}


@pytest.mark.parametrize("seed", range(4))
def test_a_parent_may_be_killed_at_any_moment(seed: int) -> None:
    before = left_over()
    kill_at_a_random_moment(Random(seed))
    assert left_over() == before


@pytest.mark.soak
def test_no_parent_of_two_hundred_leaves_anything_behind(counts_children: None) -> None:
    rng, process = Random(0), psutil.Process()
    n_fds, before = process.num_fds(), left_over()
    for _ in range(200):
        kill_at_a_random_moment(rng)
    assert process.num_fds() == n_fds
    assert not own_children(recursive=True)
    assert left_over() == before


async def launch_many_times(n_times: int) -> int:
    """Return by how many bytes we have grown, once all is imported and every cache is warm."""
    process = psutil.Process()
    sizes: list[tuple[int, int]] = []
    for number in range(n_times):
        async with launch("layers=0", options=["--engine=reference"]) as runner:
            await runner.ready()
        if number >= 2:
            sizes.append((process.num_fds(), process.memory_info().rss))
    assert sizes[0][0] == sizes[-1][0]
    assert not own_children(recursive=True)
    return sizes[-1][1] - sizes[0][1]


@pytest.mark.anyio
async def test_launching_again_and_again_costs_a_parent_nothing(counts_children: None) -> None:
    assert await launch_many_times(8) < 4 * 2**20  # this process has done other things before


@pytest.mark.anyio
@pytest.mark.soak
async def test_fifty_launches_cost_a_parent_nothing(counts_children: None) -> None:
    assert await launch_many_times(52) < 2 * 2**20


# --- the example ----------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples/parent.py"


def check_the_example(*arguments: str) -> None:
    """Kill one of its runners while both have work; every prompt is answered all the same."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pids = [int(next_line(parent).split()[0]) for _ in range(2)]
        families = [Family(pid) for pid in pids]
        assert parent.stdin is not None
        parent.stdin.write("one\ntwo\nthree\nfour\n")
        parent.stdin.flush()
        os.kill(pids[0], signal.SIGKILL)
        said = [next_line(parent)]
        while "has taken its place" not in said[-1]:
            said.append(next_line(parent))
            assert said[-1], said
        parent.stdin.write("five\n")
        parent.stdin.close()
        assert parent.stdout is not None
        said += parent.stdout.read().splitlines()
        assert parent.wait(PATIENCE_S) == 0
    assert any(f"{pids[0]} died: it was killed by SIGKILL" in line for line in said)
    answered = {line.split()[0] for line in said if " from " in line}
    assert answered == {"1", "2", "3", "4", "5"}
    assert all(family.has_ended() for family in families)


def test_the_example_survives_the_death_of_a_runner_and_says_why_it_died() -> None:
    check_the_example("layers=0,step_ms=20", "--engine=reference")


@needs_model
@pytest.mark.llama
def test_the_example_does_so_with_a_real_model() -> None:
    check_the_example("smollm2", "--ctx=256", "--slots=2", "--threads=1")
