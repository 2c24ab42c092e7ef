"""Requests for embeddings: what is taken, what is answered, and in how many messages."""

from contextlib import AsyncExitStack

import anyio
import numpy as np
import pytest

from runnerd.client import RequestFailed, connect
from runnerd.config import SessionLimits
from runnerd.errors import BadModel
from runnerd_protocol import messages as wire
from runnerd_protocol.messages import Embed, Failed, Prompt, TokensPart
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.engines import GatedLoad
from tests.pass_engine import PassEngine, embeddings


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
