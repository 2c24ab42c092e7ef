"""A load on a daemon in a process of its own: every token is counted."""

from pathlib import Path

import pytest

from loadtest.streams.daemons import run_engine_free
from loadtest.streams.measure import Report
from loadtest.streams.recording import Load
from loadtest.streams.run import run_socket
from runnerd.launcher import launch

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the one that the command runs on


async def run_reference(
    socket: Path, model: str, load: Load, n_connections: int = 1, n_ctx: int = 128
) -> Report:
    options = ["--engine=reference", f"--socket={socket}"]
    async with launch(model, slots=load.n_streams, ctx=n_ctx, options=options) as child:
        await child.ready()
        return await run_socket(socket, load, n_connections)


async def test_every_token_of_every_stream_and_round_is_counted(tmp_path: Path) -> None:
    load = Load(n_streams=6, n_prompt=40, max_tokens=20, n_rounds=2)
    report = await run_reference(tmp_path / "s", "layers=0", load, n_connections=3)
    assert (report.n_generated, report.n_ended_early, report.n_connections) == (240, 0, 3)
    assert report.least.tokens_per_s > 0
    assert report.median.itl_max_ms > 0
    assert report.resident_bytes > 10**6


async def test_streams_that_meet_an_end_token_are_counted_with_what_they_gave(
    tmp_path: Path,
) -> None:
    load = Load(n_streams=4, n_prompt=10, max_tokens=60)
    report = await run_reference(tmp_path / "s", "layers=1,end_bias=10", load)
    assert report.n_ended_early > 0
    assert report.n_generated < 240


async def test_a_stream_that_runs_out_of_context_has_ended_early(tmp_path: Path) -> None:
    load = Load(n_streams=1, n_prompt=40, max_tokens=60)
    report = await run_reference(tmp_path / "s", "layers=0", load, n_ctx=64)
    assert (report.n_ended_early, report.n_generated) == (1, 25)


async def test_a_daemon_without_an_engine_is_started_and_measured() -> None:
    # Long enough for CPU time, which the kernel counts by 10 ms.
    load = Load(n_streams=8, n_prompt=10, max_tokens=1000)
    report = await run_engine_free(load)
    assert (report.n_generated, report.n_ended_early) == (8000, 0)
    assert report.ready_s > 0
    assert report.median.cpu_ms > 0
    assert report.median.step_ms > 0
