"""What holds for the reference engine holds for a real model: cache, limits, text, and leaving."""

from collections.abc import Mapping
from time import monotonic

import pytest

from runnerd.client import connect
from runnerd_protocol.messages import Part, Prompt, TextPart, TokensPart
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, IMPATIENCE_S, ask, ask_all, cold, literal, loosely, refusal

pytestmark = [pytest.mark.anyio, pytest.mark.llama]

FEW: Mapping[str, object] = {"max_tokens": 12, **GREEDY}
STORY = "Once upon a time there was a king who had two daughters, and they lived by the sea. "


# --- the cache ----------------------------------------------------------------------------------


async def test_a_prompt_again_in_every_form_says_what_it_says_cold(
    smollm2: DaemonProcess,
) -> None:
    async with connect(smollm2.path) as client:
        first = await ask(client, STORY, **FEW)
        prompts: list[Prompt] = [
            STORY,
            STORY[:50],
            [TextPart(STORY), TokensPart(first.tokens)],
            [TextPart(STORY), TokensPart(first.tokens), TextPart(" But then")],
            STORY[:60] + "nothing else happened.",
            "x",
            STORY,
        ]
        for prompt in prompts:
            answer = await ask(client, prompt, **FEW)
            alone = await cold(smollm2.path, prompt, **FEW)
            assert alone.finished.n_cached == 0
            assert answer.tokens == alone.tokens, prompt
            assert answer.finished.n_cached < answer.finished.n_prompt
        again = await ask(client, STORY, **FEW)
        assert again.finished.n_cached == again.finished.n_prompt - 1


async def test_a_sampler_is_as_new_after_one_with_every_option(smollm2: DaemonProcess) -> None:
    heavy: Mapping[str, object] = {
        "temperature": 1.3,
        "top_k": 30,
        "min_p": 0.02,
        "typical_p": 0.9,
        "repeat_penalty": 1.4,
        "presence_penalty": 0.5,
        "dry_multiplier": 0.8,
        "xtc_probability": 0.5,
        "mirostat": 2,
        "logit_bias": {260: -1000.0},
        "ignore_end": True,
        "logprobs": 2,
        "seed": 9,
    }
    async with connect(smollm2.path) as client:
        plain = await ask(client, STORY, **FEW)
        first = await ask(client, "A list:", max_tokens=20, **heavy)
        async with client.generate("A list:", **loosely({**heavy, "max_tokens": 100})) as stream:
            await anext(stream)
        assert (await ask(client, STORY, **FEW)).tokens == plain.tokens
        again = await ask(client, "A list:", max_tokens=20, **heavy)
        assert again.tokens == first.tokens
        assert 260 not in again.tokens


# --- limits -------------------------------------------------------------------------------------


async def test_the_contexts_end_is_told_as_it_is(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        n_ctx = (await client.status()).n_ctx
        tokens = (await client.tokenize(STORY * 40))[:2000]
        failed = await refusal(client, [TokensPart(tokens[: n_ctx + 1])])
        assert (failed.code, failed.details["n_ctx"]) == ("prompt_too_long", n_ctx)
        n_prompt = failed.details["n_prompt"]
        assert isinstance(n_prompt, int)
        n_bos = n_prompt - n_ctx - 1
        exact = await ask(client, [TokensPart(tokens[: n_ctx - n_bos])], ignore_end=True, **GREEDY)
        assert (exact.finished.reason, exact.finished.n_generated) == ("context", 1)
        options = {"max_tokens": 40, "ignore_end": True, "shift": True, "n_keep": 4, **GREEDY}
        shifted = await ask(client, [TokensPart(tokens[: n_ctx - 20])], **options)
        assert (shifted.finished.n_shifts, shifted.finished.n_generated) == (1, 40)
        cut = await ask(
            client, [TokensPart(tokens)], truncate=True, n_keep=4, max_tokens=8, **GREEDY
        )
        assert cut.finished.n_truncated == cut.finished.n_prompt - (n_ctx - 8)
        kept = [*tokens[: 4 - n_bos], *tokens[-(n_ctx - 8 - 4) :]]
        alike = await cold(smollm2.path, [TokensPart(kept)], max_tokens=8, **GREEDY)
        assert alike.tokens == cut.tokens


@pytest.mark.parametrize("text", ["a" * 100_000, " " * 100_000, "\n" * 50_000, "😀" * 20_000])
async def test_a_hundred_thousand_equal_characters_end_nothing(
    smollm2: DaemonProcess, text: str
) -> None:
    async with connect(smollm2.path) as client:
        started_at = monotonic()
        failed = await refusal(client, text)
        assert failed.code in ("prompt_too_long", "invalid_request")
        assert monotonic() - started_at < 10.0
        assert (await ask(client, "x", max_tokens=2)).finished.n_generated == 2


@pytest.mark.parametrize("beyond", [0, 1, 2**31 - 1 - 49152])
async def test_a_token_outside_the_vocabulary_never_reaches_the_model(
    smollm2: DaemonProcess, beyond: int
) -> None:
    async with connect(smollm2.path) as client:
        n_vocab = (await client.model()).n_vocab
        token = n_vocab + beyond
        failed = await refusal(client, [TokensPart([1, token])])
        assert (failed.code, failed.details["value"]) == ("invalid_request", str(token))
        assert str(n_vocab - 1) in failed.message
        failed = await refusal(client, "x", logit_bias={token: 1.0})
        assert failed.code == "invalid_request"
        assert str(failed.details["field"]) == f"logit_bias[{token}]"
        edge = await ask(client, "x", max_tokens=2, logit_bias={0: -1000.0, n_vocab - 1: 1000.0})
        assert edge.tokens == [n_vocab - 1] * 2


# --- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "What is the capital of France ?",
        "naïve 日本語 👩‍👩‍👧‍👦 e\u0301",
        "before\0after",
        "  two  blanks\t\r\n",
        "<|im_end|> [INST] <s> </s> <|endoftext|>",
    ],
)
async def test_text_becomes_tokens_and_the_same_text_again(
    smollm2: DaemonProcess, text: str
) -> None:
    async with connect(smollm2.path) as client:
        tokens = await client.tokenize(text, add_bos=False)
        assert await client.detokenize(tokens) == text
        model = await client.model()
        assert model.bos_token is not None
        assert not model.adds_bos
        with_bos = await client.tokenize(text)
        assert with_bos == tokens
        answer = await ask(client, text, max_tokens=1)
        assert answer.finished.n_prompt == len(with_bos)


async def test_pieces_of_characters_are_told_as_bytes(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        for text in ("媽", "👩‍👩‍👧", "\ufffd"):
            answer = await ask(client, "Say:", grammar=literal(text), logprobs=0)
            assert answer.text == text
            assert b"".join(entry.data for entry in answer.logprobs) == text.encode()


@pytest.mark.parametrize("name", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
async def test_what_a_user_writes_is_no_control_token(smollm2: DaemonProcess, name: str) -> None:
    async with connect(smollm2.path) as client:
        (control,) = await client.tokenize([TextPart(name, special=True)], add_bos=False)
        assert control not in await client.tokenize(f"a{name}b", add_bos=False)
        for cut in range(1, len(name)):
            halves: list[Part] = [TextPart(name[:cut]), TextPart(name[cut:])]
            assert control not in await client.tokenize(halves, add_bos=False)


@pytest.mark.parametrize("n_slots_asked", [4, 6])
async def test_forced_texts_side_by_side_are_never_mixed_up(
    smollm2: DaemonProcess, n_slots_asked: int
) -> None:
    texts = [f"number {i}: 日本{i} is {i * 7919}" for i in range(n_slots_asked * 3)]
    async with connect(smollm2.path) as client:
        answers = await ask_all(client, [("Say:", {"grammar": literal(t)}) for t in texts])
    assert [answer.text for answer in answers] == texts


async def test_penalties_and_biases_do_what_they_say(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        (yes,) = await client.tokenize(" yes", add_bos=False)
        favoured = await ask(client, "x", max_tokens=5, logit_bias={yes: 1000.0})
        assert favoured.text == " yes" * 5
        plain = await ask(client, "a a a a a a a a", max_tokens=12, ignore_end=True, **GREEDY)
        penalised = await ask(
            client,
            "a a a a a a a a",
            max_tokens=12,
            ignore_end=True,
            presence_penalty=100.0,
            **GREEDY,
        )
        assert len(set(penalised.tokens)) == 12
        assert len(set(plain.tokens)) < 12


# --- choices, progress, leaving -----------------------------------------------------------------


async def test_choices_of_one_prompt_share_its_evaluation(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        before = await client.status()
        answer = await ask(
            client, STORY * 3, n=4, max_tokens=8, temperature=1.0, seed=7, cache_scope="choices"
        )
        after = await client.status()
        n_evaluated = after.n_prompt_tokens - before.n_prompt_tokens
        assert n_evaluated < 1.5 * answer.finished.n_prompt
        assert [choice.seed for choice in answer.finished.choices] == [7, 8, 9, 10]
        assert len({answer.of(index) for index in range(4)}) > 1


async def test_a_cancel_amid_a_prompt_is_answered_at_once_and_spoils_nothing(
    smollm2: DaemonProcess,
) -> None:
    async with connect(smollm2.path) as client:
        prompt = STORY * 20
        wanted = await cold(smollm2.path, prompt, **FEW)
        for _ in range(3):
            options = loosely({**FEW, "cache_scope": "cancel"})
            async with client.generate(prompt, **options) as stream:
                del stream  # its block is left at once: a cancel
            started_at = monotonic()
            await smollm2.has_all_slots()
            assert monotonic() - started_at < IMPATIENCE_S + 1.0
        again = await ask(client, prompt, cache_scope="cancel", **FEW)
        assert again.tokens == wanted.tokens
