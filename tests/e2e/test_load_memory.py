"""A load that finds too little memory says so, whatever it was that did not fit; it never dies."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.abc import UNIXSocketStream

from runnerd.client import Client, RequestFailed, attach
from runnerd_protocol.messages import Status

pytestmark = pytest.mark.llama

# The limit is set in the process itself, above what it has when all libraries are there.
LIMITED = """
import resource, sys
import psutil
import runnerd.engine.llama.load
from runnerd.cli import main
limit = psutil.Process().memory_info().vms + int(sys.argv.pop(1)) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
main()
"""
OPTIONS = ("--ctx", "2048", "--threads", "2", "--log-format", "json")


@pytest.mark.parametrize("n_mib", [200, 260, 300])
def test_a_load_that_finds_no_memory_ends_with_a_report(n_mib: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, str(n_mib), "serve", "smollm2", "--socket", path, *OPTIONS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 71, ended.stderr[-2000:]
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    (said,) = [line for line in lines if line["event"] == "daemon.load_failed"]
    assert said["cause"] == "out_of_memory"
    assert said["needed_bytes"] > said["n_ctx"] > said["n_ctx_fits"]
    assert said["failed"]
    assert "would fit" in said["error"]
    assert not path.exists()


@contextmanager
def limited(n_mib: int) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Start a daemon that finds so little memory; yields our end of its socket, too."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", LIMITED, str(n_mib), "serve", "smollm2", *OPTIONS]
    process = subprocess.Popen(
        [*command, f"--fd={theirs.fileno()}"], pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL
    )
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


@pytest.mark.anyio
async def test_those_who_watch_and_those_who_wait_are_told_the_numbers() -> None:
    told: list[Status] = []
    refused: list[RequestFailed] = []

    async def watch(client: Client) -> None:
        async with client.subscribe() as statuses:
            told.extend([status async for status in statuses])

    async def wait(client: Client) -> None:
        with pytest.raises(RequestFailed) as caught:
            await client.complete("Once")
        refused.append(caught.value)

    with limited(260) as (process, ours), anyio.fail_after(60):
        async with attach(await UNIXSocketStream.from_socket(ours)) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, client)
                tasks.start_soon(wait, client)
        assert await to_thread.run_sync(process.wait) == 71
    last, failed = told[-1], refused[0].failed
    assert (last.last, last.state, last.error_code) == (True, "failed", "out_of_memory")
    assert last.memory is not None
    assert last.memory.failed is not None
    named = re.search(r"a ctx of (\d+) would fit", last.error)
    assert named is not None
    assert int(named[1]) == last.memory.n_ctx_fits == failed.details["n_ctx_fits"]
    assert failed.code == "load_failed"
    assert named[0] in failed.message
    assert failed.details["cause"] == "out_of_memory"
    assert failed.details["failed"] == last.memory.failed.what
    assert failed.details["failed_bytes"] == last.memory.failed.n_bytes
    assert last.memory.failed.n_bytes > 0
