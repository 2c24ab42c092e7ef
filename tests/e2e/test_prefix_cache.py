"""What is cached saves work and changes nothing: not a token, and for nobody."""

from collections.abc import Mapping
from random import Random
from typing import Literal

import pytest

from runnerd.client import Client, connect
from runnerd_protocol.messages import Part, Prompt, TextPart, TokensPart
from tests.daemon import Daemon, running_daemon
from tests.e2e.asking import GREEDY, Answer, ask, ask_all, cold

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2"
FEW: Mapping[str, object] = {"max_tokens": 8, **GREEDY}
KINDS = [
    f"{MODEL}",
    f"{MODEL},shift=0",
    f"{MODEL},window=16",
    f"{MODEL},recurrent=1",
]
KV = ["split", "unified"]
Kv = Literal["split", "unified"]


def special(text: str) -> list[Part]:
    return [TextPart(text, special=True)]


async def check_equals_a_cold_run(daemon: Daemon, client: Client, prompt: Prompt) -> Answer:
    """Ask, and ask again where nothing is cached; return the first answer."""
    answer = await ask(client, prompt, **FEW)
    alone = await cold(daemon.path, prompt, **FEW)
    assert alone.finished.n_cached == 0
    assert answer.tokens == alone.tokens, f"{prompt!r} with {answer.finished.n_cached} cached"
    assert answer.finished.n_cached < answer.finished.n_prompt
    return answer


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("options", KINDS)
async def test_a_prompt_again_in_every_form_says_what_it_says_cold(options: str, kv: Kv) -> None:
    text = "The rain in Spain stays mainly in the plain, they say. " * 2
    async with (
        running_daemon(options, n_slots=3, kv=kv) as daemon,
        connect(daemon.path) as client,
    ):
        for _ in range(5):
            answer = await check_equals_a_cold_run(daemon, client, text)
        await check_equals_a_cold_run(daemon, client, text[:40])
        with_reply: list[Part] = [TextPart(text), TokensPart(answer.tokens)]
        await check_equals_a_cold_run(daemon, client, with_reply)
        await check_equals_a_cold_run(daemon, client, [*with_reply, TextPart(" And so on.")])
        await check_equals_a_cold_run(daemon, client, "x")
        await check_equals_a_cold_run(daemon, client, "")
        for _ in range(2):
            await check_equals_a_cold_run(daemon, client, special(f"{text}<image:9:red>"))
        await daemon.has_all_slots()


@pytest.mark.parametrize("options", KINDS[:2])
async def test_all_but_the_last_input_comes_from_the_cache(options: str) -> None:
    async with running_daemon(options) as daemon, connect(daemon.path) as client:
        first = await ask(client, "x" * 99, **FEW)
        again = await ask(client, "x" * 99, **FEW)
        behind_an_image = special(f"{'y' * 50}<image:9:red>")
        await ask(client, behind_an_image, **FEW)
        with_image = await ask(client, behind_an_image, **FEW)
    assert (first.finished.n_prompt, first.finished.n_cached) == (100, 0)
    assert (again.finished.n_prompt, again.finished.n_cached) == (100, 99)
    assert with_image.finished.n_cached == 51  # the image goes through the model as a whole


@pytest.mark.parametrize("options", KINDS)
async def test_a_second_turn_reuses_most_of_the_first(options: str) -> None:
    def turn(text: str) -> list[Part]:
        return [
            TextPart("<|im_start|>user\n", special=True),
            TextPart(text),
            TextPart("<|im_end|>\n<|im_start|>assistant\n", special=True),
        ]

    async with running_daemon(options, n_slots=2) as daemon, connect(daemon.path) as client:
        talk: list[Part] = turn("Tell me about the weather in as many words as you like. " * 4)
        n_before = 0
        for n_turn in range(4):
            answer = await check_equals_a_cold_run(daemon, client, talk)
            if n_turn:
                assert answer.finished.n_cached >= 0.9 * n_before
            n_before = answer.finished.n_prompt
            talk += [TokensPart(answer.tokens), *turn(" Go on, then.")]


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("options", KINDS)
async def test_a_slot_taken_over_holds_nothing_of_its_former_request(options: str, kv: Kv) -> None:
    long_a = "A long text about anything at all, which goes on for quite a while. "
    prompts = [
        special(long_a),
        special(f"{long_a[:30]} and now for something else"),
        special(f"<image:12:red>{long_a[:20]}"),
        special(long_a[:20]),
        special(f"{long_a[:20]}<image:12:red>"),
        special(long_a[:20]),
        special(long_a),
    ]
    for n_slots in (1, 2):
        async with (
            running_daemon(options, n_slots=n_slots, kv=kv) as daemon,
            connect(daemon.path) as client,
        ):
            answers = [await ask(client, prompt, **FEW) for prompt in prompts * 2]
        async with running_daemon(options, n_slots=8) as fresh, connect(fresh.path) as client:
            for number, prompt in enumerate(prompts * 2):
                alone = await cold(fresh.path, prompt, **FEW)
                assert answers[number].tokens == alone.tokens, number


# --- images -------------------------------------------------------------------------------------


async def test_the_same_text_with_another_image_says_something_else() -> None:
    """Pairs differ in name, in shape, in order, and in where they stand."""
    tail = "What do you see in the picture above, in a few words?"
    shown = [
        "<image:12:red>",
        "<image:12:blue>",
        "<image:12:4:red>",
        "<image:12:causal:red>",
        "<image:12:red><image:12:blue>",
        "<image:12:blue><image:12:red>",
        "<image:13:red>",
        "I <image:12:red>",
    ]
    prompts = [special(f"{images}{tail}") for images in shown]
    async with running_daemon(MODEL, n_slots=2) as daemon, connect(daemon.path) as client:
        cold_answers = [await cold(daemon.path, prompt, **FEW) for prompt in prompts]
        assert len({tuple(answer.tokens) for answer in cold_answers}) == len(prompts)
        for _ in range(2):
            for prompt, alone in zip(prompts, cold_answers, strict=True):
                assert (await ask(client, prompt, **FEW)).tokens == alone.tokens
        again = await ask(client, prompts[-1], **FEW)
        assert again.finished.n_cached > 12  # the identical image is found


async def test_two_images_asked_about_side_by_side_are_never_confused() -> None:
    red, blue = special("<image:12:red>It is"), special("<image:12:blue>It is")
    async with running_daemon(MODEL, n_slots=2) as daemon, connect(daemon.path) as client:
        wanted = [(await cold(daemon.path, prompt, **FEW)).tokens for prompt in (red, blue)]
        assert wanted[0] != wanted[1]
        for _ in range(100):
            answers = await ask_all(client, [(red, FEW), (blue, FEW)])
            assert [answer.tokens for answer in answers] == wanted


async def test_of_an_image_with_another_name_only_what_is_before_it_is_reused() -> None:
    async with running_daemon(MODEL, n_slots=1) as daemon, connect(daemon.path) as client:
        before = "I look at this for a moment: "
        await ask(client, special(f"{before}<image:12:red> well"), **FEW)
        other = await ask(client, special(f"{before}<image:12:blue> well"), **FEW)
    assert other.finished.n_cached == 1 + len(before)


# --- who shares ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", KV)
async def test_only_requests_of_the_same_scope_share_a_prefix(kv: Kv) -> None:
    async with running_daemon(MODEL, n_slots=6, kv=kv) as daemon, connect(daemon.path) as client:
        text = "a secret that nobody else may learn by how fast it is answered"
        mine = await ask(client, text, cache_scope="me", **FEW)
        for scope in ("you", "", "m", "me "):
            answer = await ask(client, text, cache_scope=scope, **FEW)
            assert answer.finished.n_cached == 0, scope
            assert answer.tokens == mine.tokens
        assert (await ask(client, text, cache_scope="me", **FEW)).finished.n_cached > 0


@pytest.mark.parametrize("kv", KV)
async def test_a_prefix_is_found_while_another_request_still_runs_on_it(kv: Kv) -> None:
    text = "You are a helpful assistant, and you answer as briefly as you can. " * 2
    async with (
        running_daemon(f"{MODEL},end_bias=-100", n_slots=2, kv=kv) as daemon,
        connect(daemon.path) as client,
    ):
        async with client.generate(text, max_tokens=300, **GREEDY) as running:
            await anext(running)
            second = await ask(client, f"{text}Who are you?", **FEW)
            assert second.finished.n_cached == 1 + len(text)
            assert running.finished is None
            done = await running.completion()
        assert done.finished.n_generated == 300
        await check_equals_a_cold_run(daemon, client, f"{text}Who are you?")


@pytest.mark.parametrize("kv", KV)
async def test_a_conversation_is_not_trimmed_for_a_stranger_with_the_same_beginning(
    kv: Kv,
) -> None:
    system = "You are kind. "
    mine = system + "Tell me a long story about a cat that sat on a mat. " * 4
    async with running_daemon(MODEL, n_slots=2, kv=kv) as daemon, connect(daemon.path) as client:
        first = await ask(client, mine, **FEW)
        for number in range(4):
            other = await ask(client, f"{system}{number} is my question.", **FEW)
            assert other.finished.n_cached == (
                0 if kv == "split" and not number else 1 + len(system)
            )
            again = await ask(client, mine, **FEW)
            assert again.finished.n_cached == first.finished.n_prompt - 1


# --- the books ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", KV)
async def test_what_was_evaluated_and_what_was_cached_add_up_to_the_prompts(kv: Kv) -> None:
    draw = Random(5)
    prompts = [
        "".join(chr(draw.randrange(97, 123)) for _ in range(length))
        for length in (201, 206, 211, 216, 221)
    ]
    async with running_daemon(MODEL, n_slots=2, kv=kv) as daemon, connect(daemon.path) as client:
        asks = [(prompts[i % 5], {**FEW, "ignore_end": True}) for i in range(16)]
        answers = await ask_all(client, asks)
        status = await client.status()
    for i, answer in enumerate(answers):
        assert answer.finished.n_prompt == len(prompts[i % 5]) + 1
        assert answer.finished.n_generated == 8
        assert 0 <= answer.finished.n_cached < answer.finished.n_prompt
    n_prompt = sum(answer.finished.n_prompt for answer in answers)
    n_cached = sum(answer.finished.n_cached for answer in answers)
    assert status.n_prompt_tokens == n_prompt - n_cached
    assert status.n_cached_tokens == n_cached > 0
