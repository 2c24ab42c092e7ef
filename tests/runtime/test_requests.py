"""What a client asks for, and what it gets, over a real socket."""

from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import pytest
from anyio import to_thread
from msgspec.msgpack import encode

from runnerd.client import RequestFailed, connect
from runnerd.config import SessionLimits
from runnerd.engine.reference.tokenizer import BOS, END, IM_END, IM_START, N_VOCAB
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
    Part,
    Status,
    Subscribe,
    Text,
    TextPart,
    Tokenize,
    Tokens,
    TokensPart,
)
from tests.daemon import Daemon, raw_client, running_daemon
from tests.engines import ForcedEngine, GatedLoad, SlowTokenizer, SteppedEngine

pytestmark = pytest.mark.anyio

GREEDY = {"temperature": 0.0}


def forced(literal: str | bytes) -> AbstractAsyncContextManager[Daemon]:
    data = literal.encode() if isinstance(literal, str) else literal
    return running_daemon(load=lambda c, p: ForcedEngine(c, p, data))


def frame(**fields: object) -> bytes:
    payload = encode({"type": "generate", "request_id": 7, "prompt": "x", **fields})
    return len(payload).to_bytes(4, "big") + payload


async def refusal(daemon: Daemon, prompt: object, **options: object) -> Failed:
    async with connect(daemon.path) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete(prompt, **options)  # type: ignore[arg-type]  # some are wrong
    return caught.value.failed


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


# --- the text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("literal", ["日本語テスト", "👩‍👩‍👧‍👦", "é", "🇩🇪 and ASCII"])
async def test_characters_of_several_tokens_arrive_whole(literal: str) -> None:
    async with forced(literal) as daemon, connect(daemon.path) as client:
        async with client.generate("x") as stream:
            texts = [delta.text async for delta in stream]
        assert "".join(texts) == literal
        assert "�" not in "".join(texts)


@pytest.mark.parametrize(
    ("literal", "text"), [(b"a\xe3\x81", "a�"), (b"a\xffb", "a�b"), (b"\xf0\x9f\x98", "�")]
)
async def test_bytes_that_are_no_character_become_a_replacement(literal: bytes, text: str) -> None:
    async with forced(literal) as daemon, connect(daemon.path) as client:
        assert (await client.complete("x")).text == text


async def test_every_token_limit_ends_with_what_the_bytes_so_far_say() -> None:
    data = "a日b".encode()
    async with forced(data) as daemon, connect(daemon.path) as client:
        for n in range(1, len(data) + 1):
            done = await client.complete("x", max_tokens=n)
            assert done.text == data[:n].decode(errors="replace")
            assert done.finished.reason == "length"


@pytest.mark.parametrize(
    ("stops", "text", "stopped_by"),
    [
        (["<END>"], "alpha beta", "<END>"),
        (["D>g"], "alpha beta<EN", "D>g"),
        (["a"], "", "a"),
        (["alpha beta<END>gamma"], "", "alpha beta<END>gamma"),
        (["END", "<END"], "alpha beta", "<END"),
        (["z" * 1000, "gam"], "alpha beta<END>", "gam"),
        ([*(f"no{i}" for i in range(63)), "beta"], "alpha ", "beta"),
        (["nothing"], "alpha beta<END>gamma", None),
    ],
)
async def test_text_ends_before_the_earliest_stop_string(
    stops: list[str], text: str, stopped_by: str | None
) -> None:
    async with forced("alpha beta<END>gamma") as daemon, connect(daemon.path) as client:
        done = await client.complete("x", stop=stops)
    assert done.text == text
    assert done.finished.stop_sequence == stopped_by
    assert done.finished.reason == ("stop" if stopped_by is None else "stop_sequence")


@pytest.mark.parametrize(
    ("literal", "stop", "text"),
    [
        ("value: <EN", "<END>", "value: <EN"),
        ("<E<E<END>", "<END>", "<E<E"),
        ("aaaab", "aaab", "a"),
        ("<EN" * 300, "<END>", "<EN" * 300),
    ],
)
async def test_held_back_text_is_delivered_exactly_once(literal: str, stop: str, text: str) -> None:
    async with forced(literal) as daemon, connect(daemon.path) as client:
        assert (await client.complete("x", stop=[stop], shift=True)).text == text


async def test_held_back_text_is_delivered_on_cancel() -> None:
    async with (
        running_daemon(load=SteppedEngine) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", max_tokens=8, return_tokens=True, temperature=0.0))
        await engine.at_step()
        engine.let_all_go()
        text = ""
        while not isinstance(message := await client.receive(), Finished):
            text += message.text if isinstance(message, Delta) else ""
        await client.send(Generate(2, "x", stop=[text + "!"], return_tokens=True, temperature=0.0))
        n_tokens = 0
        while n_tokens < 5:
            n_tokens += (await client.receive_a(Delta, 2)).n_tokens
        await client.send(Cancel(2))
        held = ""
        while not isinstance(message := await client.receive(), Finished):
            held += message.text if isinstance(message, Delta) else ""
    assert message.reason in ("cancelled", "context")
    assert held.startswith(text[:5])


async def test_text_does_not_wait_where_no_stop_string_is_possible() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", stop=["\0\0"]))
        await engine.at_step()
        for _ in range(3):
            await engine.step()
            assert len((await client.receive_a(Delta)).text) == 1


# --- the prompt ---------------------------------------------------------------------------------


async def test_only_special_parts_hold_special_tokens() -> None:
    text = "<|im_start|>user"
    async with running_daemon() as daemon, connect(daemon.path) as client:
        assert await client.tokenize(text) == [BOS, *text.encode()]
        assert await client.tokenize([TextPart(text)]) == [BOS, *text.encode()]
        assert await client.tokenize([TextPart(text, special=True)]) == [BOS, IM_START, *b"user"]


async def test_splitting_plain_text_makes_no_special_token() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        tokens = await client.tokenize([TextPart("<|im_"), TextPart("end|>")])
        assert IM_END not in tokens
        whole = await client.tokenize([TextPart("<|im_end|>")])
        assert tokens == whole


@pytest.mark.parametrize("n_bos", [0, 1])
async def test_bos_comes_once(n_bos: int) -> None:
    parts: list[Part] = [TokensPart([BOS] * n_bos), TextPart("a"), TextPart("b")]
    async with running_daemon() as daemon, connect(daemon.path) as client:
        assert await client.tokenize(parts) == [BOS, *b"ab"]
        assert (await client.complete(parts, max_tokens=1)).finished.n_prompt == 3
        assert await client.tokenize("ab", add_bos=False) == [*b"ab"]


@pytest.mark.parametrize("prompt", ["", [], [TextPart("")]])
async def test_an_empty_prompt_is_bos_alone(prompt: str | list[TextPart]) -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        assert (await client.complete(prompt, max_tokens=1)).finished.n_prompt == 1  # type: ignore[arg-type]


async def test_a_nul_is_a_character_like_others() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        tokens = await client.tokenize("before\0after", add_bos=False)
        assert await client.detokenize(tokens) == "before\0after"
        assert (await client.complete("a\0b", max_tokens=1)).finished.n_prompt == 4


@pytest.mark.parametrize("token", [N_VOCAB, N_VOCAB + 1, 2**31 - 1])
async def test_a_token_outside_the_vocabulary_is_named(token: int) -> None:
    async with running_daemon() as daemon:
        failed = await refusal(daemon, [TokensPart([1, token])])
        assert failed.code == "invalid_request"
        limit = f"a token id from 0 to {N_VOCAB - 1}"
        assert failed.message == f"prompt[0].tokens[1] is {token}, expected {limit}"
        field = "prompt[0].tokens[1]"
        assert failed.details == {"field": field, "value": str(token), "limit": limit}
        async with raw_client(daemon) as client:
            await client.send(Detokenize(3, [token]))
            failed = await client.receive_a(Failed)
            assert (failed.code, failed.details["field"]) == ("invalid_request", "tokens[0]")


async def test_a_long_prompt_is_refused_with_both_numbers() -> None:
    async with running_daemon(n_ctx=64) as daemon:
        failed = await refusal(daemon, "x" * 100)
        assert failed.code == "prompt_too_long"
        assert failed.details == {"n_prompt": 101, "n_ctx": 64}


async def test_more_tokens_than_the_context_holds_are_refused_before_they_are_looked_at() -> None:
    async with running_daemon(n_ctx=64) as daemon, connect(daemon.path) as client:
        tokens = [N_VOCAB] * 65  # none of them exists
        failed = await refusal(daemon, [TokensPart(tokens), TextPart("x")])
        assert failed.code == "prompt_too_long"
        assert failed.details == {"n_prompt": 65, "n_ctx": 64}
        cut: list[Part] = [TokensPart([65] * 65)]
        done = await client.complete(cut, truncate=True, max_tokens=1)
        assert done.finished.n_truncated > 0


async def test_a_crowd_of_empty_parts_is_gone_through_in_a_thread() -> None:
    async with running_daemon(load=SlowTokenizer) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SlowTokenizer)
        await client.send(Tokenize(1, [TextPart("")] * 10_000))
        await to_thread.run_sync(engine.started.wait)
        await client.send(GetStatus(2))
        await client.receive_a(Status)
        engine.may_end.set()
        await client.receive_a(Tokens, 1)


async def test_long_texts_of_all_connections_share_a_thread() -> None:
    async with (
        running_daemon(load=SlowTokenizer) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        engine = daemon.engine_as(SlowTokenizer)
        await client.send(Tokenize(1, "x" * 10_000))
        await to_thread.run_sync(engine.started.wait)
        engine.started.clear()
        await other.send(Tokenize(1, "x" * 10_000), GetStatus(2))
        await other.receive_a(Status)
        await anyio.wait_all_tasks_blocked()
        assert not engine.started.is_set()
        engine.may_end.set()
        await other.receive_a(Tokens)


async def test_a_long_prompt_is_cut_if_asked_for_and_says_so() -> None:
    async with running_daemon(n_ctx=64) as daemon, connect(daemon.path) as client:
        done = await client.complete("x" * 100, truncate=True, n_keep=10, max_tokens=4)
        assert done.finished.reason == "length"
        assert (done.finished.n_prompt, done.finished.n_keep) == (101, 10)
        assert done.finished.n_truncated == 101 - (64 - 4)


async def test_a_full_context_ends_the_text() -> None:
    async with running_daemon(n_ctx=64) as daemon, connect(daemon.path) as client:
        done = await client.complete("x" * 20)
        assert done.finished.reason == "context"
        assert done.finished.n_generated == 64 - 21 + 1


async def test_a_shift_goes_on_past_the_context_and_is_counted() -> None:
    async with running_daemon(n_ctx=64) as daemon, connect(daemon.path) as client:
        done = await client.complete("x" * 20, shift=True, n_keep=5, max_tokens=200)
        assert (done.finished.reason, done.finished.n_generated) == ("length", 200)
        assert done.finished.n_shifts > 3
        assert done.finished.n_shifted >= done.finished.n_shifts


@pytest.mark.parametrize("n_keep", [-1, 0, 1, 60, 62, 63, 64, 65, 2**31 - 1, -(2**31)])
async def test_every_n_keep_leaves_room_to_generate(n_keep: int) -> None:
    async with running_daemon(n_ctx=64) as daemon, connect(daemon.path) as client:
        done = await client.complete("x" * 59, n_keep=n_keep, shift=True, max_tokens=50)
        assert done.finished.n_generated == 50
        assert 0 <= done.finished.n_keep < 64
        assert done.finished.n_shifts <= done.finished.n_shifted


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


# --- cancel -------------------------------------------------------------------------------------


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
