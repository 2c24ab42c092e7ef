"""Pictures all rows of which must share a forward pass, through a daemon, beside texts."""

from collections.abc import Iterator, Mapping

import anyio
import pytest

pytest.importorskip("llama_cpp")

from loadtest.pictures import picture
from runnerd.client import Client, connect
from runnerd_protocol.messages import MediaPart, Part, TextPart
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, Answer, ask, ask_all, cold
from tests.e2e.seeing import COLOURS, parts, plain, seeing_daemon
from tests.engine.driving import PROMPTS
from tests.engine.vision_files import gemma3, needs_gemma

pytestmark = [pytest.mark.anyio, pytest.mark.llama, needs_gemma]

N_ROWS, N_SLOTS = 64, 4
N_ROUNDS = 4
QUESTION = " is the color of the picture. The color of the picture is"


@pytest.fixture(scope="module")
def eyes() -> Iterator[DaemonProcess]:
    """Gemma 3 in four slots, asked for smaller batches than a picture needs."""
    yield from seeing_daemon(
        gemma3(), "--slots", str(N_SLOTS), "--ctx", "256", "--batch", "16", "--ubatch", "16"
    )


async def colour_of(client: Client, image: bytes, **options: object) -> Answer:
    return await ask(client, parts(image, QUESTION), max_tokens=1, **{**GREEDY, **options})


async def test_batches_are_made_large_enough_for_a_picture(eyes: DaemonProcess) -> None:
    async with connect(eyes.path) as client:
        model = await client.model()
    assert (model.n_batch, model.n_ubatch) == (N_ROWS + N_SLOTS, N_ROWS)
    assert model.n_image_rows > N_ROWS
    assert "batch.raised" in eyes.log


async def test_clients_with_pictures_and_texts_are_never_mixed_up(eyes: DaemonProcess) -> None:
    said: list[tuple[str, str]] = []
    options: Mapping[str, object] = {"max_tokens": 12, **GREEDY}
    alone = [await cold(eyes.path, text, **options) for text in PROMPTS[:2]]

    async def look(number: int) -> None:
        async with connect(eyes.path) as client:
            for n_round in range(N_ROUNDS):
                name = COLOURS[(number + n_round) % len(COLOURS)]
                answer = await colour_of(client, plain(name), cache_scope=f"{number}")
                said.append((f" {name}", answer.text))

    with anyio.fail_after(240):
        async with connect(eyes.path) as client, anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(look, number)
            for n_round in range(3):
                asks = [(text, {**options, "cache_scope": f"{n_round}"}) for text in PROMPTS[:2]]
                beside = await ask_all(client, asks)
                assert [each.text for each in beside] == [each.text for each in alone]
    assert [pair for pair in said if pair[0] != pair[1]] == []
    assert len(said) == 4 * N_ROUNDS


async def test_the_whole_of_a_picture_decides(eyes: DaemonProcess) -> None:
    quadrants = picture(["red", "green"], ["blue", "yellow"])
    prompt: list[Part] = [
        TextPart("<start_of_turn>user\nWhat is the color of the picture? ", special=True),
        MediaPart(quadrants),
        TextPart("<end_of_turn>\n<start_of_turn>model\nThe color of the picture is", special=True),
    ]
    async with connect(eyes.path) as client:
        answer = await ask(client, prompt, max_tokens=1, **GREEDY)
        assert answer.text == " blue"  # "red" if the rows are evaluated 16 by 16


async def test_another_picture_in_its_place_is_another_prompt(eyes: DaemonProcess) -> None:
    async with connect(eyes.path) as client:
        for name in ("red", "blue"):
            answer = await colour_of(client, plain(name), cache_scope="place")
            assert answer.text == f" {name}"
            assert answer.finished.n_cached < 2
        n_encoded = (await client.status()).n_images_encoded
        again = await colour_of(client, plain("blue"), cache_scope="place")
        assert again.text == " blue"
        assert again.finished.n_cached == again.finished.n_prompt - 1
        assert (await client.status()).n_images_encoded == n_encoded


async def test_a_second_turn_evaluates_nothing_of_the_first_again(eyes: DaemonProcess) -> None:
    async with connect(eyes.path) as client:
        turn = parts("Look: ", plain("green"), " This is")
        options: Mapping[str, object] = {"max_tokens": 4, "cache_scope": "turns", **GREEDY}
        first = await ask(client, turn, **options)
        n_encoded = (await client.status()).n_images_encoded
        second = await ask(client, [*turn, *parts(first.text, " And then")], **options)
        assert second.finished.n_cached >= first.finished.n_prompt
        assert (await client.status()).n_images_encoded == n_encoded
