"""A model that knows colours is asked about pictures, through a daemon, by many at once."""

from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

import anyio
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("llama_cpp")

from loadtest.pictures import pixels
from runnerd.client import Client, connect
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, Answer, ask, ask_all, cold, refusal
from tests.e2e.seeing import (
    ANSWER,
    COLOURS,
    LONG_QUESTION,
    QUESTION,
    colour_of,
    parts,
    plain,
    seeing_daemon,
)
from tests.engine.llama_builders import MODEL
from tests.engine.vision_files import phi4

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

FEW: Mapping[str, object] = {"max_tokens": 8, **GREEDY}
N_ROUNDS = 50
N_FRESH = 6  # rounds in which nothing of a picture is cached yet
SHOWN = ("dog sun", "house river", "lamp chair", "car rope")
COPY = "".join(f"Input: {words}\nOutput: {words}\n\n" for words in SHOWN)


@pytest.fixture(scope="module")
def eyes() -> Iterator[DaemonProcess]:
    """SmolLM2 in eight slots, with a row for each 16 x 16 pixels."""
    yield from seeing_daemon(phi4(max_tokens=64), "--slots", "8", "--ctx", "256", "--batch", "64")


async def n_encoded(client: Client) -> int:
    return (await client.status()).n_images_encoded


def png(rgb: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    file = BytesIO()
    Image.fromarray(rgb).save(file, "PNG")
    return file.getvalue()


# --- whose picture is it? -----------------------------------------------------------------------


async def test_eight_clients_with_eight_colours_are_never_mixed_up(eyes: DaemonProcess) -> None:
    said: list[tuple[str, str]] = []
    async with connect(eyes.path) as client:
        encoded = await n_encoded(client)

    async def one(number: int) -> None:
        async with connect(eyes.path) as client:
            for n_round in range(N_ROUNDS):
                name = COLOURS[(number + n_round) % len(COLOURS)]
                scope = f"round {n_round}" if n_round < N_FRESH else "all"
                answer = await colour_of(client, plain(name), cache_scope=scope)
                said.append((name, answer.text.strip()))

    with anyio.fail_after(240):
        async with anyio.create_task_group() as tasks:
            for number in range(len(COLOURS)):
                tasks.start_soon(one, number)
    assert len(said) == N_ROUNDS * len(COLOURS)
    assert [pair for pair in said if pair[0] != pair[1]] == []
    async with connect(eyes.path) as client:
        assert await n_encoded(client) <= encoded + len(COLOURS)


async def test_a_text_with_another_picture_is_another_prompt(eyes: DaemonProcess) -> None:
    async def ask_for(client: Client, name: str) -> Answer:
        return await colour_of(client, plain(name), LONG_QUESTION, cache_scope="same text")

    async with connect(eyes.path) as client:
        n_before = len(await client.tokenize(LONG_QUESTION))
        for name, n_cached in (("red", 0), ("blue", n_before), ("brown", n_before)):
            answer = await ask_for(client, name)
            assert answer.text == f" {name}"
            assert answer.finished.n_cached == n_cached
        encoded = await n_encoded(client)
        again = await ask_for(client, "brown")
        assert again.text == " brown"
        assert again.finished.n_cached == again.finished.n_prompt - 1
        assert await n_encoded(client) == encoded


async def test_pictures_of_the_same_bytes_in_another_shape_are_two(eyes: DaemonProcess) -> None:
    wide = pixels(["red", "blue", "green"], width=150, height=30)
    shapes = [png(wide.reshape(h, w, 3)) for w, h in ((150, 30), (30, 150), (300, 15))]
    async with connect(eyes.path) as client:
        n_before = len(await client.tokenize(LONG_QUESTION))
        encoded = await n_encoded(client)
        for number, image in enumerate(shapes):
            answer = await colour_of(client, image, LONG_QUESTION, cache_scope="shapes")
            assert answer.finished.n_cached == (n_before if number else 0)
        assert await n_encoded(client) == encoded + len(shapes)


async def test_a_picture_of_which_one_pixel_has_changed_is_another(eyes: DaemonProcess) -> None:
    rgb = pixels(["green"], width=48)
    changed = rgb.copy()
    changed[20, 30, 1] += 1
    async with connect(eyes.path) as client:
        encoded = await n_encoded(client)
        n_before = len(await client.tokenize(LONG_QUESTION))
        for image, n_cached in ((png(rgb), 0), (png(changed), n_before)):
            answer = await colour_of(client, image, LONG_QUESTION, cache_scope="pixel")
            assert answer.finished.n_cached == n_cached
        assert await n_encoded(client) == encoded + 2


async def test_a_picture_in_another_format_is_the_same(eyes: DaemonProcess) -> None:
    file = BytesIO()
    Image.fromarray(pixels(["purple"], width=32)).save(file, "BMP")
    async with connect(eyes.path) as client:
        await colour_of(client, plain("purple"), cache_scope="format")
        encoded = await n_encoded(client)
        answer = await colour_of(client, file.getvalue(), cache_scope="format")
        assert answer.text == " purple"
        assert answer.finished.n_cached == answer.finished.n_prompt - 1
        assert await n_encoded(client) == encoded


async def test_two_pictures_are_told_in_their_order(eyes: DaemonProcess) -> None:
    red, blue = plain("red", 16), plain("blue", 16)
    async with connect(eyes.path) as client:
        n_before = len(await client.tokenize(f"{COPY}Input:"))
        for images, words, n_cached in (
            ((red, blue), ["red", "blue"], 0),
            ((blue, red), ["blue", "red"], n_before),
        ):
            prompt = parts(f"{COPY}Input:", *images, "\nOutput:")
            answer = await ask(client, prompt, max_tokens=2, cache_scope="order", **GREEDY)
            assert answer.text.split() == words
            assert answer.finished.n_cached == n_cached


# --- places of a picture ------------------------------------------------------------------------


async def test_a_prompt_may_end_with_a_picture_begin_with_it_or_be_one(
    eyes: DaemonProcess,
) -> None:
    image = plain("yellow")
    async with connect(eyes.path) as client:
        for prompt in (parts("Look: ", image), parts(image, " is"), parts(image)):
            answer = await ask(client, prompt, cache_scope="places", **FEW)
            assert answer.finished.n_generated > 0
            encoded = await n_encoded(client)
            alone = await cold(eyes.path, prompt, **FEW)
            assert answer.tokens == alone.tokens
            again = await ask(client, prompt, cache_scope="places", **FEW)
            assert again.tokens == answer.tokens
            assert again.finished.n_cached < again.finished.n_prompt
            assert await n_encoded(client) == encoded


async def test_a_second_turn_evaluates_nothing_of_the_first_again(eyes: DaemonProcess) -> None:
    async with connect(eyes.path) as client:
        turn = parts("Here is a picture: ", plain("pink", 64), ". What a nice picture!\nAnswer:")
        first = await ask(client, turn, cache_scope="turns", **FEW)
        encoded = await n_encoded(client)
        following = [*turn, *parts(first.text + "\n" + QUESTION + ANSWER)]
        second = await ask(client, following, cache_scope="turns", **FEW)
        assert second.finished.n_cached >= first.finished.n_prompt
        assert await n_encoded(client) == encoded
        alone = await cold(eyes.path, following, **FEW)
        assert second.tokens == alone.tokens


async def test_a_context_that_is_full_lets_go_of_a_whole_picture(eyes: DaemonProcess) -> None:
    image = plain("white", 128)
    async with connect(eyes.path) as client:
        n_before = len(await client.tokenize(QUESTION))
        prompt = parts(QUESTION, image, ANSWER, QUESTION, image, ANSWER)
        answer = await ask(
            client, prompt, shift=True, n_keep=n_before + 30, max_tokens=120, ignore_end=True
        )
        finished = answer.finished
        assert finished.n_keep == n_before
        assert finished.n_shifts == 1
        assert finished.n_shifted >= 64
        assert finished.n_generated == 120


async def test_a_file_is_read_by_its_path(eyes: DaemonProcess, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(plain("blue"))
    async with connect(eyes.path) as client:
        finished, text = await completed(client, [QUESTION, path, ANSWER])
        assert (finished, text) == ("length", " blue")


async def completed(client: Client, given: list[str | Path]) -> tuple[str, str]:
    async with client.generate(parts=given, max_tokens=1, temperature=0.0) as stream:
        text = "".join([delta.text async for delta in stream])
    assert stream.finished is not None
    return stream.finished.reason, text


# --- neighbours ---------------------------------------------------------------------------------

TEXTS = ("1, 2, 3, 4, 5, 6,", "the cat, the cat, the cat,", "Once upon a time there was")


async def test_texts_beside_pictures_say_what_they_say_alone(eyes: DaemonProcess) -> None:
    options: Mapping[str, object] = {"max_tokens": 24, **GREEDY}
    alone = [await cold(eyes.path, text, **options) for text in TEXTS]
    beside: list[Answer] = []

    async def look(client: Client) -> None:
        for number, name in enumerate(COLOURS):
            answer = await colour_of(client, plain(name), cache_scope=f"beside {number}")
            assert answer.text == f" {name}"

    async with connect(eyes.path) as client, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(look, client)
        asks = [(text, {**options, "cache_scope": "beside"}) for text in TEXTS]
        beside += await ask_all(client, asks)
    assert [answer.tokens for answer in beside] == [answer.tokens for answer in alone]


async def test_a_broken_picture_is_refused_by_its_number_and_nobody_else_notices(
    eyes: DaemonProcess,
) -> None:
    good = plain("green")
    broken = {"cut": good[:-20], "no image": b"<svg/>", "bomb": with_side(good, 60_000)}
    async with connect(eyes.path) as client:
        alone = await cold(eyes.path, TEXTS[2], max_tokens=60, **GREEDY)
        beside: list[Answer] = []

        async def tell() -> None:
            scope = "neighbour of the broken"
            answer = await ask(client, TEXTS[2], max_tokens=60, cache_scope=scope, **GREEDY)
            beside.append(answer)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell)
            for name, data in broken.items():
                failed = await refusal(client, parts("x", good, "y", data, "z"))
                assert failed.code == "invalid_media", name
                assert failed.details["index"] == 1
                assert failed.details["field"] == "prompt[3]"
                assert failed.details["value"]
                assert failed.details["limit"]
                assert not beside, "the neighbour was to run meanwhile"
        assert beside[0].tokens == alone.tokens
    await eyes.has_all_slots()


def with_side(data: bytes, side: int) -> bytes:
    """Return a PNG file that says it has so many pixels on each side."""
    return data[:16] + 2 * side.to_bytes(4, "big") + data[24:]


async def test_a_model_without_eyes_says_so_and_does_not_look(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        assert (await client.model()).n_image_rows == 0
        failed = await refusal(client, parts("What is ", b"\x89PNG, but not really", "?"))
        assert failed.code == "unsupported"
