"""The bare loop, on a real model with tiny sizes."""

import pytest

from loadtest.streams.daemons import run_daemon
from loadtest.streams.raw import RawFailed, run_raw
from loadtest.streams.recording import Load, ModelSetup
from runnerd.models import resolve_model

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_setup(n_batch: int = 64) -> ModelSetup:
    return ModelSetup(model=resolve_model("smollm2"), n_ctx=64, n_batch=n_batch, n_threads=1)


@pytest.mark.llama
async def test_the_bare_loop_generates_every_token_in_lockstep() -> None:
    load = Load(n_streams=3, n_prompt=9, max_tokens=5, n_rounds=2)
    report = await run_raw(make_setup(), load)
    assert (report.n_generated, report.n_connections) == (30, 0)
    assert report.least.decode_tokens_per_s > 0
    assert report.ready_s > 0
    assert report.resident_bytes > 50 * 10**6


@pytest.mark.llama
async def test_prompts_that_exceed_a_batch_are_evaluated_in_several() -> None:
    load = Load(n_streams=2, n_prompt=12, max_tokens=2)
    report = await run_raw(make_setup(n_batch=10), load)
    assert report.n_generated == 4
    assert report.median.ttft_p95_ms > report.median.ttft_p50_ms


@pytest.mark.llama
async def test_a_daemon_evaluates_the_same_prompts_in_full() -> None:
    load = Load(n_streams=2, n_prompt=9, max_tokens=5)
    report = await run_daemon(make_setup(), load)
    assert (report.n_generated, report.n_cached, report.n_ended_early) == (10, 0, 0)


async def test_a_loop_without_a_model_says_so() -> None:
    load = Load(n_streams=1, n_prompt=4, max_tokens=1)
    with pytest.raises(RawFailed):
        await run_raw(ModelSetup(model="no/such/file.gguf"), load)
