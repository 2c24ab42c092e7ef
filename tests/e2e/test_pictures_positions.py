"""Pictures that take fewer positions than cells: with M-RoPE all counts differ behind one."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from loadtest.pictures import picture
from runnerd.client import connect
from runnerd_protocol.messages import Part
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, ask, ask_all, cold, refusal
from tests.e2e.seeing import COLOURS, parts, seeing_daemon
from tests.engine.vision_files import qwen2vl

pytestmark = [pytest.mark.anyio, pytest.mark.llama]

N_CTX = 256
FEW: Mapping[str, object] = {"max_tokens": 12, "ignore_end": True, **GREEDY}


@pytest.fixture(scope="module")
def eyes() -> Iterator[DaemonProcess]:
    """A tiny model with random weights and M-RoPE: a row for each 16 x 16 pixels."""
    flags = ("--slots", "4", "--ctx", str(N_CTX), "--batch", "32", "--image-rows", "64")
    yield from seeing_daemon(qwen2vl(), *flags)


def drawn(number: int) -> bytes:
    """Return a picture of one of many sizes."""
    size = np.random.default_rng(number).integers(3, 7, 2) * 16
    name, other = COLOURS[number % 8], COLOURS[(number + 3) % 8]
    return picture([name], [other], width=int(size[0]), height=int(size[1]))


def conversation(n_pictures: int) -> list[Part]:
    """Return texts with so many pictures between them."""
    prompt = parts("Look at these. ")
    for number in range(n_pictures):
        prompt += parts(f"Picture {number} is ", drawn(number), " of course. ")
    return prompt


async def test_what_follows_pictures_is_as_in_a_cold_run_however_much_is_cached(
    eyes: DaemonProcess,
) -> None:
    async with connect(eyes.path) as client:
        for n_pictures in (1, 2, 3, 4, 3, 2):
            prompt = conversation(n_pictures)
            answer = await ask(client, prompt, **FEW)
            alone = await cold(eyes.path, prompt, **FEW)
            assert answer.tokens == alone.tokens, n_pictures
            assert (answer.finished.n_cached > 0) == (n_pictures > 1)


async def test_pictures_of_many_sequences_in_the_same_steps_are_as_alone(
    eyes: DaemonProcess,
) -> None:
    prompts = [parts(f"{n}: ", drawn(n), "\n", drawn(n + 5), " and") for n in range(8)]
    alone = [await cold(eyes.path, prompt, **FEW) for prompt in prompts]
    async with connect(eyes.path) as client:
        asks = [(prompt, {**FEW, "cache_scope": f"{n}"}) for n, prompt in enumerate(prompts)]
        beside = await ask_all(client, asks)
    assert [answer.tokens for answer in beside] == [answer.tokens for answer in alone]
    assert len({tuple(answer.tokens) for answer in alone}) > 4


async def test_choices_go_on_from_the_same_picture(eyes: DaemonProcess) -> None:
    prompt = conversation(2)
    options: Mapping[str, object] = {"max_tokens": 12, "temperature": 1.0, "ignore_end": True}
    alone = [await cold(eyes.path, prompt, seed=seed, **options) for seed in (3, 4, 5)]
    async with connect(eyes.path) as client:
        answer = await ask(client, prompt, n=3, seed=3, cache_scope="choices", **options)
    said = [answer.of(index) for index in range(3)]
    assert said == [one.text for one in alone]


async def test_the_context_is_full_when_its_cells_are(eyes: DaemonProcess) -> None:
    async with connect(eyes.path) as client:
        prompt = conversation(4)
        answer = await ask(client, prompt, ignore_end=True, **GREEDY)
        assert answer.finished.reason == "context"
        assert answer.finished.n_prompt + answer.finished.n_generated in (N_CTX, N_CTX + 1)
        failed = await refusal(client, conversation(12))
        assert failed.code == "prompt_too_long"
