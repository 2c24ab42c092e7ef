"""Embeddings beside generation, and what becomes of a request for them."""

from itertools import pairwise

import anyio
import numpy as np
import pytest

from runnerd.client import RequestFailed, connect
from runnerd.embed_queue import Pass
from runnerd.embed_request import _packed
from runnerd.embedding import FIRST_ROWS, Embeddings, PassBudget
from runnerd.engine.base import EngineConfig
from runnerd.engine_thread import EngineThread
from runnerd.errors import EngineFailed
from runnerd.figures import Figures
from runnerd.step_watch import StepWatch
from runnerd_protocol import messages as wire
from runnerd_protocol.messages import Cancel, Embed, Failed
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.pass_engine import PassEngine, embeddings, many


def test_a_pass_beside_generation_takes_about_as_long_as_a_step_should() -> None:
    budget = PassBudget(0.05)
    one = Pass("mean", (), ((7,) * 100,))
    assert budget.n_rows == FIRST_ROWS
    for pooling in ("mean", "last", "mean"):  # each makes a context
        budget.observe(Pass(pooling, (), one.inputs), 9.0)
        assert budget.n_rows == FIRST_ROWS
    budget.observe(one, 0.1)
    assert budget.n_rows == pytest.approx(50, abs=1)
    for _ in range(50):
        budget.observe(one, 10.0)
    assert budget.n_rows == 0  # an input at a time


def test_vectors_are_sent_with_length_one_and_a_zero_stays_zero() -> None:
    vectors = np.array([[3, 4], [0, 0], [1e-30, 0], [3e38, 3e38]], np.float32)
    packed = [np.frombuffer(each, "<f4").tolist() for each in _packed(vectors, normalize=True)]
    assert packed == [
        pytest.approx([0.6, 0.8]),
        [0, 0],
        [1, 0],
        pytest.approx([0.5**0.5] * 2),
    ]
    assert np.array_equal(np.frombuffer(_packed(vectors, normalize=False)[3], "<f4"), vectors[3])


# --- passes beside steps -------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_step_comes_between_two_passes_while_something_generates() -> None:
    async with running_daemon(load=PassEngine) as daemon, connect(daemon.path) as client:
        calls = daemon.engine_as(PassEngine).calls
        async with client.generate("beside", max_tokens=2000, shift=True) as stream:
            await anext(stream)
            assert len(await client.embed(many(400).inputs)) == 400
            during = list(calls)
        assert during.count("pass") > 5
        assert ("pass", "pass") not in pairwise(during)
        assert (await client.status()).n_embedded == 400


@pytest.mark.anyio
async def test_steps_get_as_much_time_after_a_pass_as_it_took() -> None:
    engine = PassEngine(EngineConfig(model=""), lambda *_: True)
    thread, figures = EngineThread(), Figures(0.0)
    watch = StepWatch(60.0, lambda: None)
    passes = Embeddings(engine, thread, figures, watch, 0.05, lambda: None)
    passes.submit([(7,) * FIRST_ROWS] * 3, "mean")
    assert await passes.run_pass(is_alone=False)
    assert not await passes.run_pass(is_alone=False)
    passes.give_time(1e-9)
    assert not await passes.run_pass(is_alone=False)
    passes.give_time(60.0)
    assert await passes.run_pass(is_alone=False)
    assert passes.forgive()
    assert not passes.forgive()
    assert await passes.run_pass(is_alone=False)
    assert figures.n_embedded == 3
    engine.close()
    thread.close()


@pytest.mark.anyio
async def test_a_cancel_drops_what_has_not_run() -> None:
    async with running_daemon(load=PassEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(PassEngine)
        engine.shut()
        await client.send(many(1000))
        await engine.at_pass()
        await client.send(Cancel(1))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.retryable) == ("cancelled", False)
        engine.open()
        await client.send(Embed(2, ["after"]))
        assert len((await client.receive_a(wire.Embeddings)).vectors) == 1
        assert engine.calls.count("pass") == 2


@pytest.mark.anyio
async def test_a_client_that_has_gone_is_worked_for_no_more() -> None:
    async with running_daemon(load=PassEngine) as daemon:
        engine = daemon.engine_as(PassEngine)
        engine.shut()
        async with raw_client(daemon) as client:
            await client.send(many(1000))
            await engine.at_pass()
        await daemon.until(lambda: not embeddings(daemon))
        engine.open()
        async with connect(daemon.path) as other:
            await other.embed(["after"])
        assert engine.calls.count("pass") == 2


@pytest.mark.anyio
async def test_a_pass_that_fails_fails_its_requests_and_no_others() -> None:
    async with running_daemon(load=PassEngine) as daemon, connect(daemon.path) as client:
        engine = daemon.engine_as(PassEngine)
        engine.error = EngineFailed("no memory for embeddings")
        with pytest.raises(RequestFailed) as caught:
            await client.embed(many(100).inputs)
        assert caught.value.failed.code == "engine_failed"
        engine.error = None
        assert len(await client.embed(many(100).inputs)) == 100
        assert (await client.complete("and on", max_tokens=3)).finished.n_generated == 3


@pytest.mark.anyio
async def test_a_drain_finishes_what_has_begun_and_refuses_the_rest() -> None:
    async with running_daemon(load=PassEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(PassEngine)
        engine.shut()
        await client.send(Embed(1, ["begun"] * 300))
        await engine.at_pass()
        await client.send(Embed(2, ["waits"]))
        await daemon.until(lambda: daemon.runner.n_waiting == 1)
        await daemon.until(lambda: len(embeddings(daemon)) == 2)
        daemon.runner.stop()
        failed = await client.receive_a(Failed)
        assert (failed.request_id, failed.code) == (2, "shutting_down")
        engine.open()
        assert len((await client.receive_a(wire.Embeddings)).vectors) == 300
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()


@pytest.mark.anyio
async def test_the_end_of_a_drain_ends_what_is_left() -> None:
    async with running_daemon(load=PassEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(PassEngine)
        engine.shut()
        await client.send(many(1000))
        await engine.at_pass()
        daemon.runner.stop()
        daemon.runner.cancel_all()
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.retryable) == ("shutting_down", True)


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["cancelled", "gone", "drained"])
async def test_a_pass_that_nobody_waits_for_is_stopped(way: str) -> None:
    async with running_daemon(load=PassEngine) as daemon, connect(daemon.path) as other:
        engine = daemon.engine_as(PassEngine)
        engine.stops = True
        engine.shut()
        async with raw_client(daemon) as client:
            await client.send(Embed(1, ["long"]))
            await engine.at_pass()
            match way:
                case "cancelled":
                    await client.send(Cancel(1))
                case "drained":
                    daemon.runner.stop()
                    daemon.runner.cancel_all()
            if way != "gone":
                await client.receive_a(Failed)
        if way == "drained":
            with anyio.fail_after(PATIENCE_S):
                await daemon.has_ended.wait()
        else:
            assert len(await other.embed(["after"])) == 1
        assert engine.calls[:2] == ["pass", "stop"]
        assert engine.calls.count("stop") == 1


@pytest.mark.anyio
async def test_a_pass_that_somebody_waits_for_is_not_stopped() -> None:
    async with running_daemon(load=PassEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(PassEngine)
        engine.stops = True
        engine.shut()
        await client.send(Embed(1, ["of one"]), Embed(2, ["of another"]))
        await engine.at_pass()
        await client.send(Cancel(1))
        assert (await client.receive_a(Failed)).request_id == 1
        engine.open()
        assert (await client.receive_a(wire.Embeddings)).request_id == 2
        assert engine.calls == ["pass"]


# --- requests ------------------------------------------------------------------------------
