"""An engine that fails: whom that costs what, and that nobody waits for ever or hears two ends."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import numpy as np
import pytest

from runnerd.client import Client, GenerationStream, RequestFailed, connect
from runnerd.engine.base import Pooling, Vectors
from runnerd.errors import DecodeAborted, EngineBroken, EngineFailed
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Delta,
    Embed,
    Embeddings,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Status,
    Tokenize,
)
from tests.daemon import PATIENCE_S, Daemon, raw_client, running_daemon
from tests.e2e.asking import GREEDY, loosely
from tests.faulty import FaultyEngine
from tests.media.drawn import drawn
from tests.statuses import is_stalled, until_status

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2"
STEADY = {"max_tokens": 100, "shift": True, "ignore_end": True, "temperature": 0.0}
IS_OF_THE_LOOP = "the decode loop has ended"
LONG = "x" * 10_000  # tokenized in a thread


def engine_of(daemon: Daemon) -> FaultyEngine:
    return daemon.engine_as(FaultyEngine)


# --- what no step can go on from ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "model", "error", "told"),
    [
        ("decode", MODEL, EngineBroken("llama_decode gave -3"), "llama_decode gave -3"),
        ("decode", MODEL, AssertionError("the batch is invalid"), IS_OF_THE_LOOP),
        ("apply", MODEL, MemoryError(), IS_OF_THE_LOOP),
        ("apply", f"{MODEL},recurrent=1", EngineBroken("not copied"), "not copied"),
        ("use_adapters", MODEL, ValueError("odd"), IS_OF_THE_LOOP),
        ("oldest", f"{MODEL},window=16", RecursionError(), IS_OF_THE_LOOP),
        ("token_bytes", MODEL, MemoryError(), IS_OF_THE_LOOP),
    ],
)
async def test_a_step_that_fails_is_told_to_all_once_and_ends_the_daemon(
    call: str, model: str, error: Exception, told: str
) -> None:
    async with (
        running_daemon(model, load=FaultyEngine, n_slots=2) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(*(Generate(each, "x" * 40, shift=True) for each in range(4)))
        await client.receive_a(Delta)
        engine_of(daemon).fail(call, error)
        ends: dict[int, Failed] = {}
        while len(ends) < 4:
            message = await client.receive()
            assert isinstance(message, Accepted | Delta | Failed)
            assert message.request_id not in ends
            if isinstance(message, Failed):
                ends[message.request_id] = message
        assert {(end.code, end.message) for end in ends.values()} == {("engine_failed", told)}
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert daemon.error is error
        await client.send(Generate(9, "z"), GetStatus(10))
        assert (await client.receive_a(Failed)).code == "shutting_down"
        assert (await client.receive_a(Status)).state == "failed"


# --- what costs only those who need it ----------------------------------------------------------


async def check_goes_on(client: Client, stream: GenerationStream, said: str) -> None:
    """Assert that a stream says what it says when nothing goes wrong beside it."""
    said += "".join([delta.text async for delta in stream])
    assert said == (await client.complete("by", **loosely(STEADY))).text


@asynccontextmanager
async def beside_a_stream() -> AsyncIterator[tuple[FaultyEngine, Client]]:
    """Yield what may fail and whom that may cost something; a stream beside it goes on."""
    async with (
        running_daemon(MODEL, load=FaultyEngine) as daemon,
        connect(daemon.path) as client,
        client.generate("by", **loosely(STEADY)) as stream,
    ):
        said = (await anext(stream)).text
        yield engine_of(daemon), client
        await check_goes_on(client, stream, said)
        await daemon.has_all_slots()


@pytest.mark.parametrize("error", [EngineFailed("no graph"), MemoryError()])
async def test_a_pass_of_embeddings_that_fails_costs_its_requests_only(error: Exception) -> None:
    async with beside_a_stream() as (engine, client):
        engine.fail("embed", error)
        with pytest.raises(RequestFailed, match="engine_failed"):
            await client.embed(["a", "b"])
        assert len(await client.embed(["a", "b"])) == 2


class Numberless(FaultyEngine):
    """Makes embeddings of longer inputs that are no numbers."""

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        vectors = super().embed(inputs, pooling)
        vectors[[len(each) > 5 for each in inputs], 0] = np.nan
        return vectors


async def test_an_embedding_that_is_no_number_fails_its_request_and_none_of_the_same_pass() -> None:
    async with running_daemon(MODEL, load=Numberless) as daemon, raw_client(daemon) as client:
        await client.send(Embed(1, ["a"]), Embed(2, ["b", "a long one"]), Embed(3, ["c"]))
        ends = [await client.receive() for _ in range(3)]
        failed = [each for each in ends if isinstance(each, Failed)]
        assert [(each.request_id, each.code) for each in failed] == [(2, "engine_failed")]
        assert sum(isinstance(each, Embeddings) for each in ends) == 2
        await daemon.has_all_slots()


@pytest.mark.parametrize("error", [EngineFailed("no graph"), MemoryError()])
async def test_an_image_that_cannot_be_encoded_costs_who_needs_it_only(error: Exception) -> None:
    async with beside_a_stream() as (engine, client):
        engine.fail("encode", error)
        with pytest.raises(RequestFailed, match="engine_failed"):
            await client.complete(parts=["look", drawn(1)], max_tokens=2)
        answer = await client.complete(parts=["look", drawn(1)], max_tokens=2, ignore_end=True)
        assert answer.finished.n_generated == 2


async def test_what_a_sequence_without_numbers_has_left_is_no_start_for_another() -> None:
    async with running_daemon(MODEL, load=FaultyEngine) as daemon, connect(daemon.path) as client:
        wanted = await client.complete("the same prompt", max_tokens=5, **GREEDY)
        for _ in range(2):
            daemon.engine.faults.nan_for(daemon.runner._n_sequences + 1)
            with pytest.raises(RequestFailed, match="engine_failed"):
                await client.complete("the same prompt", max_tokens=5, **GREEDY)
        again = await client.complete("the same prompt", max_tokens=5, **GREEDY)
        assert (again.text, again.finished.n_cached) == (wanted.text, 0)
        await daemon.has_all_slots()


# --- what hangs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["decode", "apply", "use_adapters"])
async def test_a_step_that_hangs_is_told_as_stalled_and_its_requests_hear_no_end(call: str) -> None:
    async with (
        running_daemon(MODEL, load=FaultyEngine, step_timeout_s=0.05) as daemon,
        raw_client(daemon) as client,
        connect(daemon.path) as other,
    ):
        engine_of(daemon).hang(call)
        await client.send(Generate(1, "x", max_tokens=5, ignore_end=True))
        await engine_of(daemon).at_hang()
        assert (await until_status(other, is_stalled)).stalled == "step"
        with anyio.fail_after(PATIENCE_S):
            assert await other.tokenize("is served")
        await client.send(Cancel(1), GetStatus(2))
        await client.receive_a(Status, 2)
        engine_of(daemon).let_go()
        while isinstance(message := await client.receive(), Accepted | Delta):
            pass
        assert isinstance(message, Finished)
        assert message.reason == "cancelled"
        await daemon.has_all_slots()


async def test_a_pass_of_embeddings_that_hangs_is_told_as_a_stalled_step() -> None:
    async with (
        running_daemon(MODEL, load=FaultyEngine, step_timeout_s=0.05) as daemon,
        raw_client(daemon) as client,
        connect(daemon.path) as other,
    ):
        engine_of(daemon).hang("embed")
        await client.send(Embed(1, ["x"]))
        await engine_of(daemon).at_hang()
        assert (await until_status(other, is_stalled)).stalled == "step"
        engine_of(daemon).let_go()
        assert (await client.receive_a(Embeddings)).last
        await daemon.has_all_slots()


@pytest.mark.parametrize(
    ("call", "request_"),
    [("expand", Tokenize(1, LONG)), ("constrain", Generate(1, "x", grammar='root ::= "a"'))],
)
async def test_a_preparation_that_hangs_costs_no_stream_anything(
    call: str, request_: Tokenize | Generate
) -> None:
    async with (
        running_daemon(MODEL, load=FaultyEngine) as daemon,
        raw_client(daemon) as client,
        connect(daemon.path) as other,
        other.generate("by", **loosely(STEADY)) as stream,
    ):
        said = (await anext(stream)).text
        engine_of(daemon).hang(call)
        await client.send(request_)
        await engine_of(daemon).at_hang()
        await check_goes_on(other, stream, said)
        engine_of(daemon).let_go()
        while isinstance(message := await client.receive(), Accepted | Delta):
            pass
        assert not isinstance(message, Failed)
        await daemon.has_all_slots()


# --- what is no fault of anybody ----------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 5])
async def test_a_decode_that_was_stopped_without_being_asked_to_is_done_again(nth: int) -> None:
    async with running_daemon(MODEL, load=FaultyEngine) as daemon, connect(daemon.path) as client:
        wanted = await client.complete("x", max_tokens=8, cache_scope="a", **GREEDY)
        engine_of(daemon).fail("decode", DecodeAborted((0,)), nth)
        got = await client.complete("x", max_tokens=8, cache_scope="b", **GREEDY)
        assert got.text == wanted.text
        await daemon.has_all_slots()
