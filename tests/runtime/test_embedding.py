"""Embeddings beside generation, and what becomes of a request for them."""

import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise

import anyio
import numpy as np
import pytest
from anyio import to_thread

from runnerd.client import RequestFailed, connect
from runnerd.config import SessionLimits
from runnerd.core.batch import Batch
from runnerd.embed_queue import Pass
from runnerd.embed_request import _packed
from runnerd.embedding import FIRST_ROWS, Embeddings, PassBudget
from runnerd.engine.base import Decoded, EngineConfig, LoadProgress, Pooling, Vectors
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.engine_thread import EngineThread
from runnerd.errors import BadModel, DecodeAborted, EngineFailed
from runnerd.figures import Figures
from runnerd.step_watch import StepWatch
from runnerd_protocol import messages as wire
from runnerd_protocol.messages import Cancel, Embed, Failed, Prompt, TokensPart
from tests.daemon import PATIENCE_S, Daemon, raw_client, running_daemon
from tests.engines import GatedLoad


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


class PassEngine(ReferenceEngine):
    """Keeps a list of its calls; a pass waits at the gate while that is shut, or fails.

    With `stops` one that waits there can be stopped.
    """

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.calls: list[str] = []
        self.error: EngineFailed | None = None
        self.stops = False
        self._is_stopped = False
        self._arrived = threading.Semaphore(0)
        self._may_pass = threading.Event()
        self._may_pass.set()

    def decode(self, batch: Batch) -> Decoded:
        self.calls.append("step")
        return super().decode(batch)

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        self.calls.append("pass")
        self._arrived.release()
        self._may_pass.wait()
        if self._is_stopped:
            self.calls.append("stop")
            raise DecodeAborted(())
        if self.error is not None:
            raise self.error
        return super().embed(inputs, pooling)

    def set_abort(self, wanted: bool, /) -> None:
        super().set_abort(wanted)
        if self.stops:
            self._is_stopped = wanted
        if self.stops and wanted:
            self.open()

    def shut(self) -> None:
        """Let passes wait from now on."""
        self._may_pass.clear()

    def open(self) -> None:
        """Let passes go on."""
        self._may_pass.set()

    async def at_pass(self) -> None:
        """Wait until another pass has begun."""
        await to_thread.run_sync(self._arrived.acquire, abandon_on_cancel=True)

    def close(self) -> None:
        self.open()
        super().close()


def embeddings(daemon: Daemon) -> Embeddings:
    assert daemon.runner._loop is not None
    return daemon.runner._loop.embeddings


def many(n_inputs: int) -> Embed:
    inputs: list[Prompt] = [f"input {number}" for number in range(n_inputs)]
    return Embed(1, inputs)


@pytest.mark.anyio
async def test_a_step_comes_between_two_passes_while_something_generates() -> None:
    async with running_daemon(load=PassEngine) as daemon, connect(daemon.path) as client:
        calls = daemon.engine_as(PassEngine).calls
        async with client.generate("beside", max_tokens=300, shift=True) as stream:
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


@pytest.mark.anyio
async def test_embeddings_wait_for_the_load() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Embed(1, ["early"]))
        await daemon.until(lambda: daemon.runner.n_waiting == 1)
        load.let_go()
        assert len((await client.receive_a(wire.Embeddings)).vectors) == 1
        assert daemon.runner.n_waiting == 0


@pytest.mark.anyio
async def test_a_load_that_fails_fails_embeddings() -> None:
    load = GatedLoad(BadModel("broken"))
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Embed(1, ["early"]))
        load.let_go()
        assert (await client.receive_a(Failed)).code == "load_failed"


@pytest.mark.anyio
async def test_a_full_queue_takes_no_more_embeddings() -> None:
    async with running_daemon(load=PassEngine, max_queue=2) as daemon:
        engine = daemon.engine_as(PassEngine)
        engine.shut()
        async with raw_client(daemon) as client:
            await client.send(*(Embed(request_id, ["x"]) for request_id in range(4)))
            failed = await client.receive_a(Failed)
            assert (failed.request_id, failed.code, failed.retryable) == (3, "overloaded", True)
            assert failed.details["max_queue"] == 2
            engine.open()
            answers = [await client.receive_a(wire.Embeddings) for _ in range(3)]
            assert {each.request_id for each in answers} == {0, 1, 2}


@pytest.mark.anyio
async def test_an_answer_too_long_for_a_frame_comes_in_several() -> None:
    limits = SessionLimits(max_frame_bytes=2**16)
    async with (
        running_daemon("layers=0,dim=32", limits=limits) as daemon,
        raw_client(daemon) as client,
    ):
        inputs: list[Prompt] = ["z" * 200 if n % 300 == 5 else str(n) for n in range(1000)]
        await client.send(Embed(1, inputs, truncate=True))
        answers = [await client.receive_a(wire.Embeddings)]
        while not answers[-1].last:
            answers.append(await client.receive_a(wire.Embeddings))
        assert len(answers) > 3
        assert max(sum(map(len, each.vectors)) for each in answers) <= 2**14
        n_seen = 0
        for each in answers:
            assert each.first == n_seen
            n_seen += len(each.vectors)
            assert len(each.n_tokens) == len(each.vectors)
        assert n_seen == 1000
        assert [index for each in answers for index in each.truncated] == [5, 305, 605, 905]


@pytest.mark.anyio
async def test_many_requests_at_once_get_what_each_gets_alone() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        answers: dict[int, list[list[float]]] = {}

        async def embed(number: int) -> None:
            inputs = [f"{number} of {n}" for n in range(number)]
            answers[number] = [list(each) for each in await client.embed(inputs)]

        async with anyio.create_task_group() as tasks:
            for number in range(1, 30):
                tasks.start_soon(embed, number)
        for number in (1, 10, 29):
            for n in (0, number - 1):
                (alone,) = await client.embed([f"{number} of {n}"])
                assert np.allclose(answers[number][n], list(alone), atol=1e-6)


@pytest.mark.anyio
async def test_a_pooling_that_the_model_has_not_is_refused() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with pytest.raises(RequestFailed, match="not by cls") as caught:
            await client.embed(["x"], pooling="cls")
        assert caught.value.failed.code == "unsupported"


@pytest.mark.anyio
async def test_a_wrong_token_is_named_by_its_place() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.embed(["x", [TokensPart([65]), TokensPart([66, 99999])]])
        assert caught.value.failed.code == "invalid_request"
        assert caught.value.failed.details["field"] == "inputs[1][1].tokens[1]"


@pytest.mark.anyio
async def test_a_client_that_reads_nothing_is_worked_for_only_so_far() -> None:
    limits = SessionLimits(write_timeout_s=PATIENCE_S)
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(
            running_daemon("layers=0,dim=256", load=PassEngine, limits=limits)
        )
        lazy = await stack.enter_async_context(raw_client(daemon))
        client = await stack.enter_async_context(connect(daemon.path))
        await lazy.send(Embed(1, ["x"] * 60_000))
        await daemon.until(lambda: embeddings(daemon).n_begun == 1)
        before = -1
        while daemon.runner.figures.n_embedded > before:  # its own passes come between ours
            before = daemon.runner.figures.n_embedded + 64
            await client.embed(["y"] * 64)
        assert daemon.runner.figures.n_embedded < 30_000


@pytest.mark.anyio
async def test_requests_for_embeddings_and_their_failures_are_counted() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Embed(1, ["x"]), Embed(2, []))
        await client.receive_a(Failed, 2)
        await daemon.until(lambda: daemon.runner.places.n_waiting == 0)
        figures = daemon.runner.figures
        assert (figures.n_embeds, figures.n_embeds_failed) == (2, 1)
