"""The text of a prompt and of its completion, over a real socket."""

from contextlib import AbstractAsyncContextManager

import anyio
import pytest
from anyio import to_thread

from runnerd.client import RequestFailed, connect
from runnerd.engine.reference.tokenizer import BOS, IM_END, IM_START, N_VOCAB
from runnerd_protocol.messages import (
    Cancel,
    Delta,
    Detokenize,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Part,
    Status,
    TextPart,
    Tokenize,
    Tokens,
    TokensPart,
)
from tests.daemon import Daemon, raw_client, running_daemon
from tests.engines import ForcedEngine, SlowTokenizer, SteppedEngine

pytestmark = pytest.mark.anyio


def forced(literal: str | bytes) -> AbstractAsyncContextManager[Daemon]:
    data = literal.encode() if isinstance(literal, str) else literal
    return running_daemon(load=lambda c, p: ForcedEngine(c, p, data))


async def refusal(daemon: Daemon, prompt: object, **options: object) -> Failed:
    async with connect(daemon.path) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete(prompt, **options)  # type: ignore[arg-type]  # some are wrong
    return caught.value.failed


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
        await client.send(Generate(1, "x", stop=["\1\1"]))
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


async def test_a_crowd_of_parts_or_of_ids_is_refused_before_it_is_read() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Tokenize(1, [TextPart("")] * 4097))
        await client.send(Tokenize(2, [TokensPart([65] * (2**20 + 1))]))
        await client.send(Detokenize(3, [65] * (2**20 + 1)))
        for request_id, field in ((1, "prompt"), (2, "prompt[0].tokens"), (3, "tokens")):
            refused = await client.receive_a(Failed, request_id)
            assert (refused.code, refused.details["field"]) == ("invalid_request", field)
        await client.send(Tokenize(1, [TextPart("")] * 4096))
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
