"""Cancels at every stage of a request."""

from typing import Any

import pytest
from anyio import to_thread

from runnerd.client import connect
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Finished,
    Generate,
    GetStatus,
    Status,
)
from tests.daemon import raw_client, running_daemon
from tests.engines import GatedLoad, SlowTokenizer, SteppedEngine

pytestmark = pytest.mark.anyio

GREEDY: dict[str, Any] = {"temperature": 0.0}


async def test_a_cancel_in_prefill_leaves_the_rest_unevaluated() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_batch=16, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x" * 300), Generate(2, "y", max_tokens=1))
        await engine.at_step()
        await engine.step()
        await client.send(Cancel(1), GetStatus(9))
        await client.receive_a(Status)
        engine.let_go()
        assert (await client.receive_a(Finished, 1)).reason == "cancelled"
        batch = await engine.at_step()
        assert {span.seq_id for span in batch.spans} == {2}
        engine.let_all_go()
        assert (await client.receive_a(Finished, 2)).reason == "length"
        await daemon.has_all_slots()


async def test_a_cancelled_prefill_leaves_no_trace_in_later_answers() -> None:
    async with running_daemon("layers=1,dim=16", n_batch=16) as daemon:
        async with connect(daemon.path) as client:
            prompt = "x" * 300
            async with client.generate(prompt, **GREEDY):
                pass
            again = await client.complete(prompt, max_tokens=12, **GREEDY)
    async with (
        running_daemon("layers=1,dim=16", n_batch=16) as fresh,
        connect(fresh.path) as client,
    ):
        assert (await client.complete(prompt, max_tokens=12, **GREEDY)).text == again.text


async def test_a_cancel_in_generation_acts_at_the_next_commit() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x"))
        await engine.at_step()
        await engine.step(3)
        await client.send(Cancel(1), GetStatus(9))
        await client.receive_a(Status)
        engine.let_go()
        finished = await client.receive_a(Finished)
        assert (finished.reason, finished.n_generated) == ("cancelled", 4)
        engine.let_all_go()
        await daemon.has_all_slots()


async def test_a_cancel_in_the_queue_is_answered_at_once() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x"), Generate(2, "y"))
        await engine.at_step()
        await client.send(Cancel(2))
        assert (await client.receive_a(Finished)).request_id == 2  # while a step still runs
        engine.let_all_go()
        await client.send(Cancel(1))
        await daemon.has_all_slots()


async def test_a_cancel_during_tokenization_is_not_forgotten() -> None:
    async with running_daemon(load=SlowTokenizer) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SlowTokenizer)
        await client.send(Generate(1, "x" * 10_000, truncate=True))
        await to_thread.run_sync(engine.started.wait)
        await client.send(Cancel(1), GetStatus(2))
        await client.receive_a(Status)
        engine.may_end.set()
        assert (await client.receive_a(Finished)).reason == "cancelled"
        assert daemon.runner.figures.n_steps == 0
        await daemon.has_all_slots()


async def test_a_cancel_while_loading_is_answered_at_once() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x"))
        await client.receive_a(Accepted)
        await client.send(Cancel(1))
        assert (await client.receive_a(Finished)).reason == "cancelled"
        load.let_go()
        await daemon.until(lambda: daemon.runner.state == "ready")
        assert daemon.runner.figures.n_steps == 0


async def test_a_cancel_in_the_same_write_as_its_request_acts() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "x", shift=True), Cancel(1))
        assert (await client.receive_a(Finished)).reason == "cancelled"
        await daemon.has_all_slots()


async def test_the_cancel_of_an_unknown_id_is_ignored() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Cancel(77), GetStatus(1))
        assert isinstance(await client.receive(), Status)


async def test_a_client_cannot_cancel_the_requests_of_another() -> None:
    async with (
        running_daemon(load=SteppedEngine) as daemon,
        raw_client(daemon) as victim,
        raw_client(daemon) as other,
    ):
        await victim.send(Generate(1, "x", max_tokens=3))
        await daemon.engine_as(SteppedEngine).at_step()
        await other.send(Cancel(1), GetStatus(2))
        await other.receive_a(Status)
        daemon.engine_as(SteppedEngine).let_all_go()
        assert (await victim.receive_a(Finished)).reason == "length"
