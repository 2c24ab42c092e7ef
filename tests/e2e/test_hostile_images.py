"""Images that mean no good, beside streams that want nothing but to go on."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from io import BytesIO

import anyio
import pytest
from PIL import Image

from runnerd.client import Client, connect
from runnerd.config import ImageLimits, SessionLimits
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    DaemonMessage,
    Failed,
    Finished,
    Generate,
    Media,
    MediaPart,
    MediaWanted,
    TextPart,
)
from tests.daemon import PATIENCE_S, Daemon, RawClient, raw_client, running_daemon
from tests.holding import check_holds_nothing, held
from tests.media.drawn import drawn
from tests.media.encode_engine import EncodeEngine
from tests.media.image_files import png

pytestmark = pytest.mark.anyio

N_SLOTS = 4
N_TOKENS = 1000
SIGNATURE = b"\x89PNG\r\n\x1a\n"
PICTURE = drawn(9)


def noise(number: int, side: int) -> bytes:
    """Return a file that takes three bytes for each pixel."""
    file = BytesIO()
    Image.new("RGB", (side, side), (number, 0, 0)).save(file, "BMP")
    return file.getvalue()


HOSTILE = {
    "empty": b"",
    "one byte": b"\x89",
    "signature only": SIGNATURE,
    "random": bytes(range(256)) * 40,
    "text": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "cut short": PICTURE[:-20],
    "damaged": PICTURE[:45] + b"\xff\xff" + PICTURE[47:],
    "bomb": png(60_000, 60_000),
    "large and false": SIGNATURE + bytes(2**22),
}
VALID = {
    "plain": PICTURE,
    "wide": drawn(3, 10_000, 1),
    "high": drawn(4, 1, 10_000),
    "one pixel": drawn(5, 1, 1),
    "large": drawn(6, 5000, 5000),
}


def about(request_id: int, data: bytes) -> Generate:
    return Generate(request_id, [TextPart("What is this? "), MediaPart(data)], max_tokens=2)


async def answer(client: RawClient, request: Generate) -> tuple[DaemonMessage, float]:
    """Ask; return the last answer, and how long it took."""
    asked_at = anyio.current_time()
    await client.send(request)
    while not isinstance(said := await client.receive(), Failed | Finished):
        pass
    return said, anyio.current_time() - asked_at


@asynccontextmanager
async def neighbours(daemon: Daemon) -> AsyncIterator[None]:
    """Let long texts be written in all slots but one; they must come out as if alone."""

    async def write(client: Client, number: int) -> str:
        done = await client.complete(f"text {number}", max_tokens=N_TOKENS, temperature=0.0)
        return done.text

    async def write_again(client: Client, number: int) -> None:
        assert await write(client, number) == alone[number]

    async with connect(daemon.path) as client, anyio.create_task_group() as tasks:
        alone = [await write(client, number) for number in range(N_SLOTS - 1)]
        for number in range(N_SLOTS - 1):
            tasks.start_soon(write_again, client, number)
        await daemon.until(lambda: held(daemon)["sequences"] == N_SLOTS - 1)
        yield


async def test_what_is_no_image_is_told_at_once_and_harms_nobody() -> None:
    async with running_daemon(n_slots=N_SLOTS, n_ctx=2048) as daemon:
        async with neighbours(daemon), raw_client(daemon) as client:
            for name, data in HOSTILE.items():
                took_s = []
                for request_id in range(3):  # the machine may be busy with something else
                    said, elapsed_s = await answer(client, about(request_id, data))
                    assert isinstance(said, Failed), name
                    assert (said.code, said.retryable) == ("invalid_media", False)
                    assert (said.details["index"], said.details["field"]) == (0, "prompt[1]")
                    assert said.details["value"]
                    assert said.details["limit"]
                    took_s.append(elapsed_s)
                assert min(took_s) < 0.5, name
        await check_holds_nothing(daemon)


async def test_an_image_of_any_shape_is_answered_soon_and_harms_nobody() -> None:
    async with running_daemon(n_slots=N_SLOTS, n_ctx=2048) as daemon:
        async with neighbours(daemon), raw_client(daemon) as client:
            for name, data in VALID.items():
                said, took_s = await answer(client, about(1, data))
                assert isinstance(said, Finished), name
                assert took_s < 5.0, name
        await check_holds_nothing(daemon)


async def test_fifty_bombs_at_once_are_all_told_and_leave_nothing() -> None:
    async with running_daemon(n_slots=N_SLOTS, n_ctx=2048) as daemon:
        async with neighbours(daemon), AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(raw_client(daemon)) for _ in range(10)]
            for client in clients:
                await client.send(*(about(n, png(50_000 + n, 50_000)) for n in range(5)))
            for client in clients:
                failed = [await client.receive_a(Failed) for _ in range(5)]
                assert {each.code for each in failed} == {"invalid_media"}
                assert {each.request_id for each in failed} == set(range(5))
        assert daemon.runner.pictures.n_decoded == 0
        await check_holds_nothing(daemon)


async def test_large_files_in_flight_are_bounded_and_the_rest_is_refused_by_name() -> None:
    side, n_clients = 2300, 12  # 15 MiB each
    images = ImageLimits(store_bytes=40 * 2**20)
    async with (
        running_daemon(load=EncodeEngine, images=images) as daemon,
        AsyncExitStack() as stack,
    ):
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        clients = [await stack.enter_async_context(raw_client(daemon)) for _ in range(n_clients)]
        answers: list[DaemonMessage] = []

        async def ask(client: RawClient, number: int) -> None:
            answers.append((await answer(client, about(1, noise(number, side))))[0])

        async with anyio.create_task_group() as tasks:
            for number, client in enumerate(clients):
                tasks.start_soon(ask, client, number)
            await daemon.until(lambda: len(answers) == n_clients - 2)
            assert held(daemon)["file bytes"] <= images.store_bytes
            await daemon.until(lambda: held(daemon)["intake bytes"] == 0)
            for said in answers:
                assert isinstance(said, Failed)
                assert (said.code, said.retryable) == ("overloaded", True)
                assert said.details["n_bytes_limit"] == images.store_bytes
            engine.open()
        assert sum(isinstance(said, Finished) for said in answers) == 2
        await check_holds_nothing(daemon)


async def test_clients_that_break_off_anywhere_in_an_upload_leave_nothing() -> None:
    async with running_daemon(n_slots=N_SLOTS, n_ctx=2048) as daemon:
        async with neighbours(daemon):
            frame = encode_frame(about(1, noise(1, 500)))
            for n_sent in (3, 40, len(frame) // 2, len(frame) - 1, len(frame)):
                async with raw_client(daemon) as client:
                    await client.send(frame[:n_sent])
        await daemon.until(lambda: daemon.server.n_connections == 0)
        await check_holds_nothing(daemon)


async def test_clients_that_answer_no_question_as_they_should_harm_nobody() -> None:
    limits = SessionLimits(media_timeout_s=0.5)
    digest = sha256(PICTURE).digest()
    request = Generate(1, [MediaPart(sha256=digest)], max_tokens=1)
    async with running_daemon(n_slots=N_SLOTS, n_ctx=2048, limits=limits) as daemon:
        async with neighbours(daemon), AsyncExitStack() as stack:
            silent, twice, late, garbled, half = [
                await stack.enter_async_context(raw_client(daemon)) for _ in range(5)
            ]
            for client in (silent, twice, late, garbled, half):
                await client.send(request)
                assert isinstance(await client.receive(), Accepted)
                assert await client.receive() == MediaWanted(1, [digest])
            await twice.send(Media(1, PICTURE), Media(1, PICTURE))
            await late.send(Cancel(1), Media(1, PICTURE))
            await garbled.send(*[Media(1, data) for data in HOSTILE.values()])
            half.shut_down_sending()
            assert (await twice.receive_a(Finished)).reason == "length"
            assert (await late.receive_a(Finished)).reason == "cancelled"
            for client in (silent, garbled, half):
                assert (await client.receive_a(Failed)).code == "invalid_media"
            for client in (silent, twice, late, garbled):  # they are still served
                with anyio.fail_after(PATIENCE_S):
                    said, _ = await answer(client, about(2, PICTURE))
                assert isinstance(said, Finished)
        await check_holds_nothing(daemon)
