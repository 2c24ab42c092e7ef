"""Completions of every shape, side by side in more and fewer slots than there are requests."""

from collections.abc import Mapping
from typing import Literal

import anyio
import pytest

from runnerd.client import connect
from runnerd_protocol.messages import Cancel, Delta, Generate, Prompt, TextPart, TokensPart
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, ask, ask_all, loosely

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2,end_bias=-100"
SEEDED: Mapping[str, object] = {"seed": 42, "temperature": 1.0}
PROMPTS = [
    "Write a very long poem.",
    "Write a very long book.",
    "Write a joke.",
    "What is the capital of France?",
]


# --- the same in every way ----------------------------------------------------------------------


@pytest.mark.parametrize("n_batch", [16, 32, 33, 128])
@pytest.mark.parametrize("n_slots", [1, 2, 4])
async def test_the_text_of_a_seed_depends_on_neither_slots_nor_batches(
    n_slots: int, n_batch: int
) -> None:
    async with running_daemon(MODEL, n_slots=1, n_batch=128) as daemon:
        async with connect(daemon.path) as client:
            wanted = [await ask(client, p, max_tokens=32, **SEEDED) for p in PROMPTS]
    async with (
        running_daemon(MODEL, n_slots=n_slots, n_batch=n_batch) as daemon,
        connect(daemon.path) as client,
    ):
        asks = [(prompt, {"max_tokens": 32, **SEEDED}) for prompt in PROMPTS]
        together = await ask_all(client, asks)
        assert [answer.tokens for answer in together] == [answer.tokens for answer in wanted]
        other = await ask(client, PROMPTS[0], max_tokens=32, seed=43, temperature=1.0)
        assert other.tokens != wanted[0].tokens


@pytest.mark.parametrize(("n_slots", "n_requests"), [(1, 3), (2, 2), (2, 4), (4, 2), (4, 6)])
@pytest.mark.parametrize("kv", ["split", "unified"])
async def test_more_requests_than_slots_are_all_served_alike(
    n_slots: int, n_requests: int, kv: Literal["split", "unified"]
) -> None:
    async with (
        running_daemon(MODEL, n_slots=n_slots, kv=kv) as daemon,
        connect(daemon.path) as client,
    ):
        asks = [(PROMPTS[i % 4], {"max_tokens": 64, **SEEDED}) for i in range(n_requests)]
        answers = await ask_all(client, asks)
        assert all(len(answer.tokens) == 64 for answer in answers)
        for (prompt, options), answer in zip(asks, answers, strict=True):
            alone = await ask(client, prompt, cache_scope="alone", **options)
            assert alone.tokens == answer.tokens
        await daemon.has_all_slots()


async def test_text_token_ids_and_a_mix_of_both_are_the_same_prompt() -> None:
    prompts: list[Prompt] = [
        "What is this?",
        [TextPart("What is this?")],
        [TokensPart([*b"What is this?"])],
        [TokensPart([*b"What "]), TextPart("is "), TokensPart([*b"this?"])],
    ]
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        answers = [await ask(client, prompt, max_tokens=16, **GREEDY) for prompt in prompts]
    assert len({tuple(answer.tokens) for answer in answers}) == 1
    assert {answer.finished.n_prompt for answer in answers} == {14}


async def test_a_prompt_of_many_batches_says_what_it_says_in_one() -> None:
    prompt = "I believe the meaning of life is " * 14
    tokens = []
    for n_batch in (512, 40, 7):
        async with (
            running_daemon(MODEL, n_slots=4, n_batch=n_batch) as daemon,
            connect(daemon.path) as client,
        ):
            tokens.append((await ask(client, prompt, max_tokens=16, **GREEDY)).tokens)
    assert tokens[0] == tokens[1] == tokens[2]


# --- ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignores", [True, False])
async def test_the_end_can_be_ignored(ignores: bool) -> None:
    async with (
        running_daemon("layers=1,dim=16,end_bias=12") as daemon,
        connect(daemon.path) as client,
    ):
        answer = await ask(client, "x", max_tokens=50, ignore_end=ignores, **GREEDY)
    assert answer.finished.reason == ("length" if ignores else "stop")
    assert answer.finished.n_generated == (50 if ignores else 0)


async def test_a_cancelled_completion_frees_its_slot_at_once() -> None:
    async with running_daemon(f"{MODEL},step_ms=5", n_slots=1) as daemon:
        async with raw_client(daemon) as client:
            await client.send(Generate(1, "x", shift=True))
            await client.receive_a(Delta)
            await client.send(Cancel(1), Generate(2, "y", max_tokens=1))
            with anyio.fail_after(2):
                assert (await client.receive_a(Delta, 2)).n_tokens == 1


# --- a pool shorter than its slots --------------------------------------------------------------

POOL_ROWS = [(80, 40, 80, 80), (70, 70, 70, 70), (90, 90, 40, 90), (90, 90, 40, 75)]


@pytest.mark.parametrize("asked", POOL_ROWS)
@pytest.mark.parametrize("options", [MODEL, f"{MODEL},window=24", f"{MODEL},recurrent=1"])
async def test_a_full_pool_costs_nobody_a_token(options: str, asked: tuple[int, ...]) -> None:
    async with (
        running_daemon(options, n_slots=4, n_ctx=256, n_cells=256) as daemon,
        connect(daemon.path) as client,
    ):
        wanted = [
            await ask(client, [TokensPart([65 + i])], max_tokens=n, **SEEDED)
            for i, n in enumerate(asked)
        ]
        asks: list[tuple[Prompt, Mapping[str, object]]] = [
            ([TokensPart([65 + i])], {"max_tokens": n, **SEEDED}) for i, n in enumerate(asked)
        ]
        with anyio.fail_after(PATIENCE_S):
            answers = await ask_all(client, asks)
        assert [answer.finished.n_generated for answer in answers] == list(asked)
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in wanted]
        if max(sum(n >= upto for n in asked) * (upto + 1) for upto in asked) > 256:
            assert sum(answer.finished.n_suspended for answer in answers) > 0
        await daemon.has_all_slots()


@pytest.mark.llama
@pytest.mark.parametrize("asked", POOL_ROWS)
async def test_a_full_pool_of_a_real_model_costs_nobody_a_token(
    smollm2_short: DaemonProcess, asked: tuple[int, ...]
) -> None:
    prompts = ["1 2", "one two", "a b", "x y"]
    async with connect(smollm2_short.path) as client:
        asks: list[tuple[Prompt, dict[str, object]]] = [
            (prompt, {"max_tokens": n, "ignore_end": True, **GREEDY})
            for prompt, n in zip(prompts, asked, strict=True)
        ]
        answers = await ask_all(client, asks)
        assert [answer.finished.n_generated for answer in answers] == list(asked)
        assert [len(answer.tokens) for answer in answers] == list(asked)
        await smollm2_short.has_all_slots()


@pytest.mark.llama
async def test_a_real_models_stream_is_its_text_and_repeats_itself(
    smollm2: DaemonProcess,
) -> None:
    async with connect(smollm2.path) as client:
        options = {"max_tokens": 32, **SEEDED}
        streamed = await ask(client, PROMPTS[2], **options)
        whole = await client.complete(PROMPTS[2], **loosely(options))
        other = await ask(client, PROMPTS[2], max_tokens=32, seed=43, temperature=1.0)
        assert whole.text == streamed.text
        assert other.text != streamed.text
        stopped = await ask(client, "1, 2, 3, 4,", stop=[" 7"], max_tokens=40, **GREEDY)
        assert stopped.finished.stop_sequence == " 7"
        assert stopped.text == " 5, 6,"
