"""What a client asks for, and what it gets, over a real socket."""

from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import pytest
from msgspec.msgpack import encode

from runnerd.client import RequestFailed, connect
from runnerd.config import SessionLimits
from runnerd.engine.reference.tokenizer import BOS, END, IM_END, N_VOCAB
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Delta,
    Detokenize,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    Model,
    Status,
    Subscribe,
    Text,
    Tokenize,
    Tokens,
    TokensPart,
)
from tests.daemon import Daemon, raw_client, running_daemon
from tests.engines import ForcedEngine, GatedLoad, SteppedEngine

pytestmark = pytest.mark.anyio


def forced(literal: str | bytes) -> AbstractAsyncContextManager[Daemon]:
    data = literal.encode() if isinstance(literal, str) else literal
    return running_daemon(load=lambda c, p: ForcedEngine(c, p, data))


def frame(**fields: object) -> bytes:
    payload = encode({"type": "generate", "request_id": 7, "prompt": "x", **fields})
    return len(payload).to_bytes(4, "big") + payload


# --- a request from end to end ------------------------------------------------------------------


async def test_a_request_is_accepted_streamed_and_finished() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(5, "Once", max_tokens=10, temperature=0.0))
        assert await client.receive() == Accepted(5)
        text, n_tokens = "", 0
        while isinstance(message := await client.receive(), Delta):
            text += message.text
            n_tokens += message.n_tokens
        assert isinstance(message, Finished)
        assert (message.reason, message.n_prompt, message.n_generated) == ("length", 5, 10)
        assert message.n_text_bytes == len(text.encode())
        assert n_tokens == 10
        assert 0 < message.timings.ttft_ms <= message.timings.total_ms


async def test_the_same_seed_alone_gives_the_same_text() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        first = await client.complete("Once", max_tokens=60, temperature=1.5)
        again = await client.complete(
            "Once", max_tokens=60, temperature=1.5, seed=first.finished.seed
        )
        other = await client.complete(
            "Once", max_tokens=60, temperature=1.5, seed=first.finished.seed ^ 1
        )
    assert again.text == first.text
    assert again.finished.seed == first.finished.seed
    assert other.text != first.text


async def test_tokens_are_listed_if_asked_for_and_only_then() -> None:
    async with forced("añb") as daemon, connect(daemon.path) as client:
        async with client.generate("x", return_tokens=True) as stream:
            deltas = [delta async for delta in stream]
        assert [token for delta in deltas for token in delta.tokens] == list("añb".encode())
        assert sum(delta.n_tokens for delta in deltas) == 4
        async with client.generate("x") as stream:
            assert not [delta.tokens async for delta in stream if delta.tokens]


async def test_an_id_can_be_used_again_after_the_end() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        for _ in range(3):
            await client.send(Generate(1, "Once", max_tokens=2))
            assert (await client.receive_a(Finished)).request_id == 1


async def test_an_active_id_is_refused_and_its_first_request_goes_on() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "Once", max_tokens=3))
        await daemon.engine_as(SteppedEngine).at_step()
        await client.send(Generate(1, "Twice"), GetStatus(1))
        assert [(await client.receive_a(Failed)).code for _ in range(2)] == ["duplicate_id"] * 2
        daemon.engine_as(SteppedEngine).let_all_go()
        assert (await client.receive_a(Finished)).n_generated == 3


async def test_a_prompt_alone_is_evaluated_when_max_tokens_is_0() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", max_tokens=0)
        assert (done.text, done.finished.reason) == ("", "length")
        assert (done.finished.n_prompt, done.finished.n_generated) == (5, 0)
        assert (await client.complete("Once", max_tokens=1)).finished.n_cached == 4


# --- fields out of range ------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [NAN, INF, -INF, -1, 1e308, True, "1"]),
        ("top_k", [-1, 2**31, 2**63, True, 1.5, "1"]),
        ("top_p", [NAN, INF, -0.1, 1.1]),
        ("min_p", [NAN, INF, -0.1, 1.1]),
        ("repeat_penalty", [NAN, INF, 0, -1, 101]),
        ("frequency_penalty", [NAN, -INF, INF, 101, -101]),
        ("presence_penalty", [NAN, -INF, INF, 101, -101]),
        ("penalty_last_n", [-1, 65537, 2**64 - 1]),
        ("seed", [-1, 2**32 - 1, 2**64 - 1, True]),
        ("max_tokens", [-1, 2**31, "1"]),
        ("n_keep", [2**31, -(2**31) - 1]),
        ("truncate", [1, "yes", None]),
        ("shift", [0]),
        ("return_tokens", [None]),
        ("stop", ["a", [1], ["a"] * 65, None]),
        ("stop[0]", [[""], ["x" * 4097]]),
        ("prompt", [None, 1, {"a": 1}]),
        ("prompt[0].tokens[0]", [[{"type": "tokens", "tokens": [-1]}]]),
    ],
)
async def test_a_field_out_of_range_is_named(field: str, values: list[object]) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        for value in values:
            await client.send(frame(**{field.partition("[")[0]: value}))
            failed = await client.receive_a(Failed)
            assert failed.request_id == 7
            assert failed.code == "invalid_request", (value, failed)
            assert str(failed.details["field"]).startswith(field), (value, failed)
        await client.send(frame(max_tokens=1))
        assert (await client.receive_a(Finished)).request_id == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 5e-324),
        ("temperature", -0.0),
        ("temperature", 100),
        ("top_k", 2**31 - 1),
        ("top_p", 0),
        ("min_p", 1.0),
        ("penalty_last_n", 0),
        ("seed", 2**32 - 2),
    ],
)
async def test_a_field_at_the_edge_of_its_range_works(field: str, value: float) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(frame(max_tokens=5, **{field: value}))
        assert (await client.receive_a(Finished)).n_generated == 5


async def test_failed_requests_of_every_kind_leave_all_slots_free() -> None:
    async with running_daemon(n_ctx=64) as daemon, connect(daemon.path) as client:

        async def fails(**options: object) -> None:
            with pytest.raises(RequestFailed):
                await client.complete(**options)  # type: ignore[arg-type]

        kinds: list[dict[str, object]] = [
            {"prompt": "x" * 100},
            {"prompt": [TokensPart([N_VOCAB])]},
            {"prompt": "x", "stop": [""]},
            {"prompt": "x", "temperature": NAN},
        ]
        for options in kinds:
            for _ in range(12):
                await fails(**options)
            async with anyio.create_task_group() as tasks:
                for _ in range(12):
                    tasks.start_soon(partial(fails, **options))
        await daemon.has_all_slots()


# --- everything else ----------------------------------------------------------------------------


async def test_a_connection_has_a_limit_of_requests() -> None:
    limits = SessionLimits(max_requests=2)
    async with (
        running_daemon(load=SteppedEngine, limits=limits) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(*(Generate(i, "x") for i in range(3)))
        failed = await client.receive_a(Failed)
        assert (failed.request_id, failed.code, failed.retryable) == (2, "overloaded", True)
        assert failed.details == {"n_requests": 2, "max_requests": 2}
        await client.send(GetStatus(3))
        assert (await client.receive_a(Status)).last


async def test_a_request_refused_after_its_acceptance_is_counted_with_the_failed() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False, n_ctx=64) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x" * 100), Generate(2, "x", max_tokens=1))
        await client.receive_a(Accepted, 2)
        load.let_go()
        assert (await client.receive_a(Failed)).code == "prompt_too_long"
        await client.receive_a(Finished, 2)
        await client.send(GetStatus(3))
        status = await client.receive_a(Status)
        assert (status.n_requests, status.n_failed, status.n_prompt_tokens) == (2, 1, 2)


async def test_text_longer_than_the_inline_limit_is_tokenized_alike() -> None:
    text = "long " * 4000
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Tokenize(1, text))
        tokens = (await client.receive_a(Tokens)).tokens
        assert tokens == [BOS, *text.encode()]
        await client.send(Detokenize(2, tokens))
        assert (await client.receive_a(Text)).text == text


async def test_the_model_is_described() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(GetModel(1))
        model = await client.receive_a(Model)
        assert (model.name, model.n_vocab, model.n_ctx) == ("reference", N_VOCAB, 512)
        assert (model.bos_token, model.end_tokens) == (BOS, [END, IM_END])


async def test_a_subscription_tells_of_changes_and_ends_by_cancel() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Subscribe(1, interval_s=3600))
        assert (await client.receive_a(Status)).state in ("starting", "loading")
        load.let_go()
        while (status := await client.receive_a(Status)).state != "ready":
            assert not status.last
        await client.send(Cancel(1))
        assert (await client.receive_a(Status)).last


async def test_a_subscription_tells_at_its_interval_too() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        async with client.subscribe(0.05) as statuses:
            for _ in range(3):
                assert (await anext(statuses)).state == "ready"
