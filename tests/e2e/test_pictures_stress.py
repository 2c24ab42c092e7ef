"""Many conversations with pictures at once, some given up, in too few cells: each as alone."""

from collections.abc import Iterator, Mapping
from random import Random

import anyio
import pytest

pytest.importorskip("llama_cpp")

from loadtest.pictures import RGB, picture
from runnerd.client import connect
from runnerd_protocol.messages import Part
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, ask, ask_all, cold, loosely
from tests.e2e.seeing import parts, seeing_daemon
from tests.engine.vision_files import VisionModel, qwen2vl, tiny_gemma3

pytestmark = [pytest.mark.anyio, pytest.mark.llama]

N_CLIENTS = 8
N_TURNS = 12
LONGEST = 9  # parts of a conversation, and then a new one begins
N_PICTURES = 12
SIZES = (32, 48, 64)
TEXTS = ("And this? ", "What is next to it? ", "1, 2, 3. ", "Look here: ", "So? ")
FEW: Mapping[str, object] = {"max_tokens": 20, "ignore_end": True, **GREEDY}


MODELS = {"in one pass": tiny_gemma3, "with M-RoPE": qwen2vl}
CELLS = {"slots apart": (), "too few cells": ("--ctx-total", "288")}


@pytest.fixture(params=MODELS)
def files(request: pytest.FixtureRequest) -> VisionModel:
    """A tiny model with random weights, so that any mistake changes what it says."""
    return MODELS[request.param]()


@pytest.fixture(params=CELLS)
def eyes(files: VisionModel, request: pytest.FixtureRequest) -> Iterator[DaemonProcess]:
    """A daemon with four slots of 256 inputs."""
    flags = ("--slots", "4", "--ctx", "256", "--batch", "32", "--image-rows", "16")
    yield from seeing_daemon(files, *flags, *CELLS[request.param])


def drawn(number: int) -> bytes:
    dice = Random(number)
    first, second = dice.sample(list(RGB), 2)
    return picture([first], [second], width=dice.choice(SIZES), height=dice.choice(SIZES))


async def talk(number: int, eyes: DaemonProcess, said: list[tuple[list[Part], list[int]]]) -> None:
    """Hold conversations; a turn may be given up, and then is asked again later."""
    dice = Random(number)
    so_far: list[Part] = []
    async with connect(eyes.path) as client:
        for _ in range(N_TURNS):
            so_far = so_far if len(so_far) < LONGEST else []
            so_far = [*so_far, *parts(dice.choice(TEXTS), drawn(dice.randrange(N_PICTURES)), ":")]
            if dice.random() < 0.25:
                async with client.generate(so_far, **loosely(FEW)) as stream:
                    if dice.random() < 0.5:
                        await anext(stream)
                continue
            answer = await ask(client, so_far, **FEW)
            said.append((so_far, answer.tokens))
            so_far = [*so_far, *parts(answer.text)]


async def test_every_conversation_says_what_it_says_alone(eyes: DaemonProcess) -> None:
    said: list[tuple[list[Part], list[int]]] = []
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(N_CLIENTS):
                tasks.start_soon(talk, number, eyes, said)
    assert len(said) > N_CLIENTS * N_TURNS // 2
    for prompt, tokens in said:
        assert (await cold(eyes.path, prompt, **FEW)).tokens == tokens
    await eyes.has_all_slots()
    async with connect(eyes.path) as client:
        assert (await client.status()).n_images_encoded <= N_PICTURES


async def test_a_picture_that_many_want_at_once_is_encoded_once(eyes: DaemonProcess) -> None:
    prompts = [parts(f"{number}: ", drawn(99), " is") for number in range(16)]
    async with connect(eyes.path) as client:
        answers = await ask_all(client, [(prompt, FEW) for prompt in prompts])
        assert (await client.status()).n_images_encoded == 1
    for prompt, answer in zip(prompts, answers, strict=True):
        assert (await cold(eyes.path, prompt, **FEW)).tokens == answer.tokens
