"""A peer's process: it and all that came of it end with the block."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from loadtest.comparison.exchange import PeerUnavailable
from loadtest.comparison.peers.process import running, tail
from tests.loadtest.peers.conftest import on_both_backends
from tests.processes import Family

# A child in the background that no SIGTERM ends, and a parent that one does. The pipe tells when.
STUBBORN = 'sh -c "trap : TERM; echo ready > $0; while :; do sleep 100; done" $0 & wait'

MEASURES = """
import sys
from pathlib import Path

import anyio

from loadtest.console import wait
from loadtest.comparison.peers.process import running

async def measure() -> None:
    async with running(["sleep", "1000"], Path(sys.argv[1])) as process:
        print(process.pid, flush=True)
        await anyio.sleep_forever()

wait(measure, 1000.0)
"""


async def family_of(pid: int, pipe: Path) -> Family:
    assert await anyio.to_thread.run_sync(pipe.read_text) == "ready\n"
    return Family(pid)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.anyio
@on_both_backends
async def test_a_whole_group_ends_with_the_block(pipe: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", STUBBORN, str(pipe)]
    async with running(command, tmp_path / "log") as process:
        family = await family_of(process.pid, pipe)
        assert len(family.pids) > 1
    assert family.has_ended()


@pytest.mark.anyio
@on_both_backends
async def test_a_whole_group_ends_with_a_cancelled_block(pipe: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", STUBBORN, str(pipe)]
    with anyio.CancelScope() as scope:
        async with running(command, tmp_path / "log") as process:
            family = await family_of(process.pid, pipe)
            scope.cancel()
            await anyio.sleep_forever()
    assert family.has_ended()


@pytest.mark.anyio
@on_both_backends
async def test_what_it_says_is_in_its_log_and_the_end_of_that_in_its_last_words(
    tmp_path: Path,
) -> None:
    command = ["sh", "-c", "seq 5000; echo $SHOWN >&2; exit 7"]
    async with running(command, tmp_path / "log", {"SHOWN": "an error"}) as process:
        assert await process.wait() == 7
        assert process.last_words.startswith("sh has ended with status 7: ")
        assert process.last_words.endswith("5000\nan error")
        with pytest.raises(PeerUnavailable, match="an error"):
            process.check_runs()
    assert len(tail(tmp_path / "log").splitlines()) == 12


@pytest.mark.anyio
@on_both_backends
async def test_a_program_that_is_not_there_is_a_peer_that_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="nowhere cannot be started"):
        async with running([str(tmp_path / "nowhere")], tmp_path / "log"):
            pass


def test_what_a_command_has_started_ends_when_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURES, str(tmp_path / "log")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[3]
    ) as measuring:
        assert measuring.stdout is not None
        family = Family(int(measuring.stdout.readline()))
        measuring.send_signal(signal.SIGTERM)
        assert family.has_ended()
