"""The counters: what the daemon says it did is what its clients have seen."""

from math import isfinite

import pytest
from msgspec.structs import asdict

from runnerd.client import RequestFailed, connect
from runnerd_protocol.messages import Adapter, Cancel, Delta, Finished, Generate, Status
from tests.daemon import raw_client, running_daemon
from tests.e2e.asking import GREEDY, ask, ask_all

pytestmark = pytest.mark.anyio

MODEL = "layers=1,dim=16,heads=2,end_bias=-100"


def rising(before: Status, after: Status) -> None:
    """Assert that no counter goes back, and that every number is one."""
    for name, value in asdict(after).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert isfinite(value), name
            assert value >= 0, name
    counters = (
        *("n_steps", "n_requests", "n_failed", "n_prompt_tokens", "n_generated_tokens"),
        *("n_cached_tokens", "n_cancelled", "n_timed_out", "n_suspended", "n_shifts"),
        *("n_embedded", "queue_s", "prefill_s", "decode_s", "sampling_s", "uptime_s"),
    )
    for name in counters:
        assert getattr(after, name) >= getattr(before, name), name


async def test_the_totals_are_the_sums_of_what_the_answers_said() -> None:
    async with running_daemon(MODEL, n_slots=2, n_ctx=128) as daemon:
        async with connect(daemon.path) as client:
            before = await client.status()
            asks = [
                (f"{'again ' * 5}{i % 3}", {"max_tokens": 10 + i, "shift": True}) for i in range(8)
            ]
            answers = await ask_all(client, asks)
            answers += [await ask(client, "x" * 100, max_tokens=60, shift=True)]
            after = await client.status()
        finished = [answer.finished for answer in answers]
        rising(before, after)
        assert after.n_requests == 9
        assert after.n_generated_tokens == sum(f.n_generated for f in finished)
        assert after.n_cached_tokens == sum(f.n_cached for f in finished)
        assert after.n_prompt_tokens == sum(f.n_prompt - f.n_cached for f in finished)
        assert after.n_shifts == sum(f.n_shifts for f in finished) > 0
        assert after.n_suspended == sum(f.n_suspended for f in finished)
        assert after.prefill_s == pytest.approx(
            sum(f.timings.prefill_ms for f in finished) / 1e3, rel=0.05, abs=0.01
        )
        assert after.decode_s == pytest.approx(
            sum(f.timings.decode_ms for f in finished) / 1e3, rel=0.05, abs=0.01
        )
        assert (after.n_slots_free, after.n_waiting, after.n_failed) == (2, 0, 0)


async def test_every_way_to_end_is_counted_once() -> None:
    async with running_daemon(MODEL, n_slots=2) as daemon, raw_client(daemon) as client:
        async with connect(daemon.path) as other:
            before = await other.status()
            await client.send(Generate(1, "x", shift=True))
            await client.receive_a(Delta)
            await client.send(Cancel(1))
            assert (await client.receive_a(Finished)).reason == "cancelled"
            late = await ask(other, "x", timeout_s=0.05, shift=True)
            assert late.finished.reason == "timeout"
            daemon.engine.faults.nan_for(3)
            with pytest.raises(RequestFailed, match="engine_failed"):
                await other.complete("x")
            after = await other.status()
        rising(before, after)
        assert (after.n_cancelled, after.n_timed_out, after.n_failed) == (1, 1, 1)
        assert after.n_requests == 3


async def test_the_times_of_a_request_make_sense() -> None:
    async with running_daemon(f"{MODEL},step_ms=4", n_batch=64) as daemon:
        async with connect(daemon.path) as client:
            answer = await ask(client, "x" * 200, max_tokens=10, **GREEDY)
    times = answer.finished.timings
    assert all(isfinite(value) and value >= 0 for value in asdict(times).values())
    assert times.queue_ms + times.prefill_ms == pytest.approx(times.ttft_ms, abs=2.0)
    assert times.prefill_ms >= 4 * 4  # 201 inputs in steps of 64
    assert times.decode_ms >= 9 * 4
    assert times.itl_p50_ms >= 4
    assert times.total_ms >= times.ttft_ms + times.decode_ms - 1.0
    assert times.sampling_ms <= times.prefill_ms + times.decode_ms


async def test_the_rate_does_not_count_what_was_evaluated() -> None:
    async with running_daemon(f"{MODEL},step_ms=2", n_batch=64) as daemon:
        async with connect(daemon.path) as client:
            await ask(client, "x" * 400, max_tokens=1)
            only_prompts = await client.status()
            await ask(client, "y", max_tokens=50)
            status = await client.status()
    assert only_prompts.tokens_per_s < 150
    assert 50 < status.tokens_per_s <= 500


async def test_embeddings_are_counted_too() -> None:
    async with running_daemon(MODEL, adapters=("verse",)) as daemon:
        async with connect(daemon.path) as client:
            await client.embed(["one", "two", "three"])
            await ask(client, "x", max_tokens=1, adapters=[Adapter("verse")])
            status = await client.status()
    assert status.n_embedded == 3
    assert status.n_generated_tokens == 1
