"""Requests side by side, and one after the other: none leaves a trace in another."""

from collections.abc import Mapping
from random import Random

import anyio
import pytest
from anyio import to_thread

from runnerd.client import connect
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.engine.reference.tokenizer import N_VOCAB
from runnerd_protocol.messages import (
    Adapter,
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    Prompt,
    TextPart,
    TokensPart,
)
from tests.daemon import PATIENCE_S, Daemon, raw_client, running_daemon
from tests.e2e.asking import GREEDY, IMPATIENCE_S, ask, literal, loosely, refusal

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2"
N_SLOTS = 4
Ask = tuple[Prompt, dict[str, object]]

BAD: dict[str, tuple[str, Prompt, dict[str, object]]] = {
    "a prompt too long": ("prompt_too_long", "x" * 200, {}),
    "a malformed grammar": ("bad_grammar", "x", {"grammar": 'root ::= "a'}),
    "a malformed schema": ("bad_grammar", "x", {"json_schema": "{"}),
    "an image that is none": ("invalid_request", [TextPart("<image:0:red>", special=True)], {}),
    "an image too large": ("invalid_request", [TextPart("<image:90:red>", special=True)], {}),
    "a token outside the vocabulary": ("invalid_request", [TokensPart([N_VOCAB])], {}),
    "a bias outside the vocabulary": ("invalid_request", "x", {"logit_bias": {N_VOCAB: 1.0}}),
    "an unknown adapter": ("invalid_request", "x", {"adapters": [Adapter("nobody")]}),
    "a grammar and a schema": (
        "invalid_request",
        "x",
        {"grammar": literal("a"), "json_schema": '{"type": "string"}'},
    ),
    "every token banned": (
        "engine_failed",
        "x",
        {"logit_bias": dict.fromkeys(range(N_VOCAB), -1000.0)},
    ),
}


# --- after a request that failed ----------------------------------------------------------------


@pytest.mark.parametrize("kind", BAD)
async def test_a_request_that_fails_keeps_no_slot(kind: str) -> None:
    code, prompt, options = BAD[kind]
    async with (
        running_daemon(MODEL, n_ctx=96, n_batch=64, n_slots=N_SLOTS) as daemon,
        connect(daemon.path) as client,
    ):
        before = await ask(client, "Once", max_tokens=16, **GREEDY)

        async def fail() -> None:
            with anyio.fail_after(IMPATIENCE_S):
                failed = await refusal(client, prompt, **options)
            assert failed.code == code, failed

        for _ in range(3 * N_SLOTS):
            await fail()
        await daemon.has_all_slots()
        async with anyio.create_task_group() as tasks:
            for _ in range(3 * N_SLOTS):
                tasks.start_soon(fail)
        await daemon.has_all_slots()
        after = await ask(client, "Once", max_tokens=16, **GREEDY)
        assert after.tokens == before.tokens


async def test_a_request_whose_rows_are_no_numbers_keeps_no_slot() -> None:
    async with running_daemon(MODEL, n_slots=N_SLOTS) as daemon, connect(daemon.path) as client:
        for seq_id in range(1, 3 * N_SLOTS + 1):
            daemon.engine.faults.nan_for(seq_id)
        for _ in range(3 * N_SLOTS):
            assert (await refusal(client, "x")).code == "engine_failed"
        await daemon.has_all_slots()


@pytest.mark.parametrize("kind", BAD)
async def test_streams_beside_one_that_fails_come_whole(kind: str) -> None:
    code, prompt, options = BAD[kind]
    text = "all of this is to come, to the last letter. " * 8
    async with (
        running_daemon(MODEL, n_ctx=96, n_batch=64, n_slots=N_SLOTS) as daemon,
        connect(daemon.path) as client,
        connect(daemon.path) as other,
    ):
        async with anyio.create_task_group() as tasks:

            async def stream() -> None:
                answer = await ask(client, "say", grammar=literal(text), shift=True)
                assert answer.text == text

            for _ in range(N_SLOTS - 1):
                tasks.start_soon(stream)
            for _ in range(5):
                assert (await refusal(other, prompt, **options)).code == code
        await daemon.has_all_slots()


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_prompt_whose_batch_found_no_room_says_what_it_says_fresh(nth: int) -> None:
    text = "0123456789" * 8
    prompts: list[Prompt] = [text, text + " and more", text[:40] + " but not the rest"]
    async with running_daemon(MODEL, n_batch=16) as daemon, connect(daemon.path) as client:
        wanted = [(await ask(client, p, max_tokens=8, **GREEDY)).tokens for p in prompts]
    async with (
        running_daemon(f"{MODEL},no_kv_at={nth}", n_batch=16) as daemon,
        connect(daemon.path) as client,
    ):
        got = [(await ask(client, p, max_tokens=8, **GREEDY)).tokens for p in prompts]
        assert got == wanted
        await daemon.has_all_slots()


@pytest.mark.parametrize("options", [MODEL, f"{MODEL},window=16", f"{MODEL},recurrent=1"])
async def test_a_prompt_cancelled_amid_its_step_says_what_it_says_fresh(options: str) -> None:
    text = "0123456789" * 20
    prompts: list[Prompt] = [text, text + " and more", text[:90] + " but not the rest"]
    async with running_daemon(options, n_batch=64) as daemon, connect(daemon.path) as client:
        wanted = [(await ask(client, p, max_tokens=8, **GREEDY)).tokens for p in prompts]
    for prompt, tokens in zip(prompts, wanted, strict=True):
        async with (
            running_daemon(options, n_batch=64) as daemon,
            raw_client(daemon) as client,
            connect(daemon.path) as other,
        ):
            engine = daemon.engine
            for request_id in range(3):
                engine.faults.hang()
                await client.send(Generate(request_id, text, max_tokens=8, temperature=0.0))
                with anyio.fail_after(PATIENCE_S):
                    await to_thread.run_sync(engine.faults.hanging.wait)
                await client.send(Cancel(request_id))
                await daemon.until(lambda: _is_ending(daemon))
                engine.faults.release()
                await daemon.until(lambda: _has_ended(daemon))
                assert (await ask(other, prompt, max_tokens=8, **GREEDY)).tokens == tokens
            await daemon.has_all_slots()


def _is_ending(daemon: Daemon) -> bool:
    assert daemon.runner.batcher is not None
    return all(s.ending is not None for s in daemon.runner.batcher.residency.running)


# --- side by side -------------------------------------------------------------------------------


async def test_500_requests_over_16_connections_each_say_their_own() -> None:
    draw = Random(18)

    def make(number: int) -> Ask:
        nonce = f"<{draw.randrange(10**9):09}>"
        image = draw.choice(["", "", "<image:7:red>", "<image:7:blue>"])
        prompt: Prompt = [TextPart("Say this: " * draw.randrange(4) + image, special=True)]
        options: dict[str, object] = {
            "grammar": literal(f"{nonce} is what I say, {number} times"),
            "logprobs": 2,
            "temperature": draw.choice([0.0, 1.0]),
            "seed": number,
            "shift": True,
            "n_keep": draw.randrange(4),
        }
        return prompt, options

    asks = [make(number) for number in range(500)]
    texts = [str(options["grammar"])[10:-1] for _, options in asks]
    async with running_daemon(MODEL, n_ctx=64, n_slots=N_SLOTS) as daemon:
        answered: dict[int, tuple[str, list[float]]] = {}

        async def talk(first: int) -> None:
            async with connect(daemon.path) as client:
                for number in range(first, len(asks), 16):
                    prompt, options = asks[number]
                    if number % 9 == 0:
                        async with client.generate(prompt, **loosely(options)) as stream:
                            await anext(stream)  # and leave: a cancel
                        continue
                    answer = await ask(client, prompt, **options)
                    answered[number] = answer.text, [e.logprob for e in answer.logprobs]

        async with anyio.create_task_group() as tasks:
            for first in range(16):
                tasks.start_soon(talk, first)
        for number, (text, _) in answered.items():
            assert text == texts[number]
        async with connect(daemon.path) as client:
            for number in list(answered)[::10]:
                prompt, options = asks[number]
                alone = await ask(client, prompt, cache_scope=f"alone {number}", **options)
                assert [entry.logprob for entry in alone.logprobs] == answered[number][1]
        await daemon.has_all_slots()


class WatchedEngine(ReferenceEngine):
    """Counts calls that enter it while another is inside."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.n_inside = 0
        self.n_overlaps = 0

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name not in ("decode", "apply", "embed", "use_adapters", "oldest"):
            return value
        assert callable(value)

        def watched(*args: object) -> object:
            self.n_overlaps += self.n_inside > 0
            self.n_inside += 1
            try:
                return value(*args)
            finally:
                self.n_inside -= 1

        return watched


async def test_no_two_calls_are_in_the_engine_at_once() -> None:
    async with running_daemon(MODEL, load=WatchedEngine) as daemon, connect(daemon.path) as client:

        async def generate(number: int) -> None:
            await client.complete(f"{number}", max_tokens=5)

        async def embed(number: int) -> None:
            await client.embed([f"{number}", "x" * (number % 100)])

        async def tokenize(number: int) -> None:
            await client.tokenize("x" * (number * 100))

        async with anyio.create_task_group() as tasks:
            for number in range(1, 200):
                tasks.start_soon((generate, embed, tokenize)[number % 3], number)
        assert daemon.engine_as(WatchedEngine).n_overlaps == 0


# --- one after the other ------------------------------------------------------------------------

EVERYTHING: Mapping[str, object] = {
    "temperature": 1.3,
    "dynatemp_range": 0.5,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 1.0,
    "typical_p": 0.8,
    "top_n_sigma": 2.0,
    "xtc_probability": 0.5,
    "repeat_penalty": 1.5,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "dry_multiplier": 0.8,
    "logit_bias": {101: 5.0, 32: -1000.0},
    "ignore_end": True,
    "logprobs": 3,
    "stop": ["zz", "e e"],
    "seed": 11,
}
HEAVY: list[Mapping[str, object]] = [
    EVERYTHING,
    {**EVERYTHING, "mirostat": 2},
    {"mirostat": 1, "temperature": 1.0, "seed": 3, "logprobs": 0},
    {"grammar": literal("yes"), "logprobs": 1},
]


@pytest.mark.parametrize("how", ["finished", "cancelled", "failed", "gone"])
@pytest.mark.parametrize("heavy", HEAVY)
async def test_a_plain_request_is_as_plain_after_one_with_every_option(
    heavy: Mapping[str, object], how: str
) -> None:
    async with running_daemon(MODEL, n_slots=1) as daemon, connect(daemon.path) as client:
        plain = await ask(client, "Once", max_tokens=16, **GREEDY)
        with_options = await ask(client, "Twice", max_tokens=16, **heavy)
        for _ in range(2):
            await _end_a_heavy_one(daemon, heavy, how)
            async with client.generate("Once", max_tokens=16, **GREEDY) as stream:
                deltas = [delta async for delta in stream]
            assert "".join(delta.text for delta in deltas) == plain.text
            assert not any(delta.logprobs or delta.tokens for delta in deltas)
            assert stream.finished is not None
            assert stream.finished.stop_sequence is None
        again = await ask(client, "Twice", max_tokens=16, **heavy)
        assert (again.tokens, again.logprobs) == (with_options.tokens, with_options.logprobs)


async def _end_a_heavy_one(daemon: Daemon, heavy: Mapping[str, object], how: str) -> None:
    if how == "failed":
        daemon.engine.faults.nan_for(daemon.runner._n_sequences + 1)
    n_most = 5 if how == "finished" else None
    async with raw_client(daemon) as client:
        await client.send(Generate(1, "Thrice", max_tokens=n_most, **heavy))  # type: ignore[arg-type]
        if how == "failed":
            assert (await client.receive_a(Failed)).code == "engine_failed"
            return
        await client.receive_a(Delta)
        if how == "cancelled":
            await client.send(Cancel(1))
        if how != "gone":
            await client.receive_a(Finished)
    await daemon.until(lambda: _has_ended(daemon))


def _has_ended(daemon: Daemon) -> bool:
    assert daemon.runner.batcher is not None
    return not daemon.runner.batcher.seq_ids
