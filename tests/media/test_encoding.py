"""Images are encoded beside generation: once, in order of need, for as long as it takes."""

from functools import partial

import anyio
import pytest

from runnerd.condition import image_cache_bytes
from runnerd.config import ImageLimits
from runnerd.media.encoding import AT_ONCE_S, IMAGES_AT_ONCE, PIXELS_AT_ONCE
from tests.daemon import running_daemon
from tests.media.encode_engine import (
    EncodeEngine,
    Request,
    answer,
    ask,
    ask_together,
    until_running,
)

pytestmark = pytest.mark.anyio

OPTIONS = "layers=1,patch=8"
NOTHING_KEPT = ImageLimits(cache_bytes=0, pixel_bytes=0)


# --- once --------------------------------------------------------------------------------------


async def test_an_image_is_encoded_once_for_all_who_bring_it() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine, n_slots=16) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        requests = [Request() for _ in range(16)]
        async with anyio.create_task_group() as tasks:
            for number, request in enumerate(requests):
                tasks.start_soon(ask, daemon, request, f"{number}:", 1, "what is it?")
            await until_running(daemon, 16)
            await engine.at_encode()
            engine.open()
        assert [request.ending for request in requests] == ["length"] * 16
        assert engine.encodes == [[1]]
        assert daemon.runner.figures.n_images_encoded == 1
        assert daemon.runner.pictures.n_decoded == 1


async def test_an_image_in_the_kv_cache_is_neither_decoded_nor_encoded_again() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine, images=NOTHING_KEPT) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        first = await answer(daemon, "look: ", 1, "what is it?")
        n_decoded = daemon.runner.pictures.n_decoded
        again = await answer(daemon, "look: ", 1, "what is it?")
        assert again.tokens == first.tokens
        assert engine.encodes == [[1]]
        assert daemon.runner.pictures.n_decoded == n_decoded


async def test_an_image_that_was_encoded_before_is_not_again() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        for text in ("one", "two", "three"):
            assert (await answer(daemon, text, 1)).ending == "length"
        assert engine.encodes == [[1]]
        assert image_cache_bytes(daemon.runner) > 0


async def test_what_is_too_large_to_be_kept_is_encoded_each_time() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine, images=NOTHING_KEPT) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        for text in ("one", "two"):
            assert (await answer(daemon, text, 1)).ending == "length"
        assert engine.encodes == [[1], [1]]
        assert image_cache_bytes(daemon.runner) == 0


async def test_who_has_lost_its_cells_has_its_image_decoded_and_encoded_again() -> None:
    async with running_daemon(
        OPTIONS, load=EncodeEngine, images=NOTHING_KEPT, kv="unified"
    ) as daemon:
        alone = await answer(daemon, "b", 2, n_tokens=60)
    async with running_daemon(
        OPTIONS, load=EncodeEngine, images=NOTHING_KEPT, kv="unified"
    ) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        first, second = Request(), Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: ask(daemon, first, "a", 1, n_tokens=60))
            await first.has_begun.wait()
            tasks.start_soon(lambda: ask(daemon, second, "b", 2, n_tokens=60))
            await second.has_begun.wait()
            engine.faults.no_kv_slot(3)
        assert (first.n_suspended, second.n_suspended) == (0, 1)
        assert engine.encodes == [[1], [2], [2]]
        assert second.tokens == alone.tokens


# --- in order ----------------------------------------------------------------------------------


async def test_text_goes_on_while_an_image_is_encoded() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        request = Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, request, "look", 1)
            await engine.at_encode()
            assert (await answer(daemon, "no image", n_tokens=50)).ending == "length"
            assert not request.has_begun.is_set()
            engine.open()
        assert request.ending == "length"


async def test_images_that_take_no_time_are_encoded_together() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine, n_slots=16) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        await ask_together(daemon, range(1))
        await ask_together(daemon, range(1, 12))
        together = [len(each) for each in engine.encodes[1:]]
        assert sum(together) == 11
        assert max(together) <= IMAGES_AT_ONCE
        assert len(together) < 11


async def test_images_that_take_long_are_encoded_one_by_one() -> None:
    options = f"{OPTIONS},encode_ms={AT_ONCE_S * 500 + 10:.0f}"
    async with running_daemon(options, load=EncodeEngine) as daemon:
        await ask_together(daemon, range(1, 4))
        assert sorted(daemon.engine_as(EncodeEngine).encodes) == [[1], [2], [3]]


async def test_large_images_are_encoded_one_by_one() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        await ask_together(daemon, range(1))
        await ask_together(daemon, range(1, 4), 1024, PIXELS_AT_ONCE // 2048 + 1)
        assert sorted(daemon.engine_as(EncodeEngine).encodes) == [[0], [1], [2], [3]]


async def test_each_gets_its_own_image_among_many_at_once() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine, n_slots=8) as daemon:
        alone = [(await answer(daemon, n, "say", n_tokens=12)).tokens for n in range(8)]
    assert len({tuple(each) for each in alone}) == 8
    async with running_daemon(OPTIONS, load=EncodeEngine, n_slots=8) as daemon:
        for n_rounds in range(3):
            requests = [Request() for _ in range(8)]
            async with anyio.create_task_group() as tasks:
                for number, request in enumerate(requests):
                    shown = (number + n_rounds) % 8
                    tasks.start_soon(partial(ask, daemon, request, shown, "say", n_tokens=12))
            told = [request.tokens for request in requests]
            assert told == [alone[(number + n_rounds) % 8] for number in range(8)]


async def test_a_model_without_images_has_no_encoder() -> None:
    async with running_daemon("layers=0,images=0") as daemon:
        assert daemon.runner.loop is not None
        assert daemon.runner.loop.encoding is None
        assert (await answer(daemon, "text")).ending == "length"
