"""Time limits of a request, and what it tells of its way to the first token."""

import anyio
import pytest

from runnerd.client import RequestFailed, connect
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    GetStatus,
    PromptProgress,
    Status,
)
from tests.daemon import PATIENCE_S, RawClient, raw_client, running_daemon
from tests.engines import GatedLoad, SteppedEngine
from tests.runtime.test_generation import SlowGrammars

pytestmark = pytest.mark.anyio

SOON_S = 0.05


async def progress_of(client: RawClient, request_id: int) -> list[PromptProgress]:
    """Return the progress that a request is told until it says something else."""
    told = []
    while isinstance(message := await client.receive(), PromptProgress):
        assert message.request_id == request_id
        told.append(message)
    return told


# --- deadlines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["queue_timeout_s", "timeout_s"])
async def test_a_request_that_is_not_begun_in_time_fails_and_may_be_tried_again(name: str) -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", shift=True))
        await engine.at_step()
        await client.send(Generate(2, "y", shift=True, **{name: SOON_S}))  # type: ignore[arg-type]
        failed = await client.receive_a(Failed)
        assert (failed.request_id, failed.code, failed.retryable) == (2, "queue_timeout", True)
        assert failed.details[name] == SOON_S
        assert failed.details["n_ahead"] == 0
        assert SOON_S <= float(failed.details["waited_s"] or 0) < PATIENCE_S
        await client.send(Cancel(1), GetStatus(3))
        assert (await client.receive_a(Status)).n_timed_out == 1
        engine.let_all_go()
        await daemon.has_all_slots()


async def test_the_queue_timeout_does_not_touch_what_has_begun() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "x", shift=True, queue_timeout_s=SOON_S))
        await client.receive_a(Delta)
        await client.send(Generate(2, "y", shift=True, timeout_s=2 * SOON_S))
        assert (await client.receive_a(Finished)).request_id == 2
        await client.send(Cancel(1))
        assert (await client.receive_a(Finished)).reason == "cancelled"


async def test_a_timeout_finishes_a_request_with_what_there_is() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", shift=True, timeout_s=4 * SOON_S)
        assert done.finished.reason == "timeout"
        assert done.finished.n_generated > 0
        assert len(done.text.encode()) == done.finished.n_text_bytes
        assert (await client.status()).n_timed_out == 1
        await daemon.has_all_slots()


async def test_a_timeout_ends_all_completions_also_those_that_still_wait() -> None:
    async with running_daemon(n_slots=2) as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", n=4, shift=True, timeout_s=4 * SOON_S)
        assert [choice.summary.reason for choice in done.choices] == ["timeout"] * 4
        await daemon.has_all_slots()


async def test_a_request_that_is_done_in_time_hears_nothing_of_its_deadlines() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", max_tokens=2, timeout_s=3600, queue_timeout_s=3600)
        assert done.finished.reason == "length"
        await daemon.has_all_slots()


async def test_the_load_of_the_model_counts_as_waiting() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x", queue_timeout_s=SOON_S))
        await client.receive_a(Accepted)
        assert (await client.receive_a(Failed)).code == "queue_timeout"
        load.let_go()
        await daemon.until(lambda: daemon.runner.state == "ready")
        await daemon.has_all_slots()


async def test_the_compilation_of_a_grammar_counts_as_waiting() -> None:
    async with running_daemon(load=SlowGrammars) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SlowGrammars)
        await client.send(Generate(1, "x", grammar='root ::= "a"', queue_timeout_s=SOON_S))
        with anyio.move_on_after(2 * SOON_S):
            await client.receive()
        engine.may_end.set()
        assert (await client.receive_a(Failed)).code == "queue_timeout"
        await daemon.has_all_slots()


# --- progress -----------------------------------------------------------------------------------


async def test_progress_tells_how_much_of_a_prompt_is_done_until_it_is_whole() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_batch=16) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x" * 39, max_tokens=1, return_progress=True))
        await client.receive_a(Accepted)
        engine.let_all_go()
        told = await progress_of(client, 1)
    assert {each.n_prompt for each in told} == {40}
    assert {each.n_cached for each in told} == {0}
    processed = [each.n_processed for each in told]
    assert processed == sorted(set(processed))
    assert processed[-1] == 40


async def test_progress_begins_at_what_was_cached() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "x" * 39, max_tokens=1))
        await client.receive_a(Finished)
        await client.send(Generate(2, "x" * 39, max_tokens=1, return_progress=True))
        await client.receive_a(Accepted)
        told = await progress_of(client, 2)
    assert {each.n_cached for each in told} == {39}
    assert told[-1].n_processed == 40


async def test_whoever_waits_is_told_when_its_place_in_the_queue_changes() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", shift=True))
        await engine.at_step()
        await client.send(Generate(2, "x"), Generate(3, "x"))
        await client.send(Generate(4, "x", max_tokens=1, return_progress=True))
        assert (await client.receive_a(Accepted, 4)).n_ahead == 2
        await client.send(Cancel(2))
        assert await client.receive_a(PromptProgress) == PromptProgress(4, n_ahead=1)
        await client.send(Generate(5, "x", max_tokens=1, priority="high"))
        assert await client.receive_a(PromptProgress) == PromptProgress(4, n_ahead=2)
        await client.send(Cancel(3), Cancel(1))
        engine.let_all_go()
        assert (await client.receive_a(Finished, 4)).reason == "length"
        await daemon.has_all_slots()


async def test_progress_is_told_only_if_asked_for() -> None:
    async with running_daemon(n_batch=16) as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "x" * 100, max_tokens=1))
        await client.receive_a(Accepted)
        assert isinstance(await client.receive(), Delta | Finished)


async def test_a_client_is_told_of_progress_while_it_reads() -> None:
    told: list[PromptProgress] = []
    async with running_daemon(n_batch=16) as daemon, connect(daemon.path) as client:
        done = await client.complete("x" * 100, max_tokens=1, on_progress=told.append)
        assert done.finished.n_generated == 1
        assert told[-1].n_processed == 101
        async with client.generate("y" * 50, max_tokens=1, return_progress=True) as stream:
            async for _ in stream:
                pass
        assert stream.progress is not None
        assert stream.progress.n_processed == 51


async def test_a_timeout_out_of_range_is_refused() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        for seconds in (0.0, -1.0, 86401.0):
            with pytest.raises(RequestFailed, match="timeout_s"):
                await client.complete("x", timeout_s=seconds)
