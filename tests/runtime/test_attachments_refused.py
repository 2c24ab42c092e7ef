"""Images that come with a request: which are refused, and in what words."""

from collections.abc import Sequence

import pytest

from runnerd.config import ImageLimits
from runnerd.core.prompt import ImagePart, Part, Prompt
from runnerd.errors import InvalidMedia
from runnerd_protocol import messages as wire
from runnerd_protocol.messages import Failed, Finished, Generate, MediaPart, TextPart, TokensPart
from tests.about_images import BLUE, RED, about, failures
from tests.daemon import raw_client, running_daemon
from tests.engines import SteppedEngine
from tests.holding import check_holds_nothing
from tests.media.drawn import drawn
from tests.media.encode_engine import EncodeEngine

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("part", "fact"),
    [
        (MediaPart(), "an empty file"),
        (MediaPart(b"no image"), "a file that begins with"),
        (MediaPart(RED[:60]), "a PNG file that"),
        (MediaPart(RED, bytes(32)), "data of another SHA-256"),
    ],
)
async def test_a_wrong_image_is_named_by_its_number_and_its_part(
    part: MediaPart, fact: str
) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(about(1, "a", BLUE, "b", part, MediaPart(b"worse")))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.retryable) == ("invalid_media", False)
        assert failed.details["index"] == 1
        assert failed.details["field"] == "prompt[3]"
        assert str(failed.details["value"]).startswith(fact)
        assert failed.details["limit"]
        assert daemon.runner.figures.n_steps == 0
        await check_holds_nothing(daemon)


class Picky(EncodeEngine):
    """Takes no image that is much wider than high."""

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        for part in parts:
            if isinstance(part, ImagePart) and part.width > 20 * part.height:
                raise InvalidMedia(f"{part.width} x {part.height} pixels", "a shape to my liking")
        return super().expand(parts, add_bos=add_bos)


async def test_a_shape_that_the_model_refuses_is_named_by_its_number_and_its_part() -> None:
    async with running_daemon(load=Picky) as daemon, raw_client(daemon) as client:
        wide = drawn(4, 200, 2)
        await client.send(about(1, "a", RED, MediaPart(RED), wide, drawn(5, 300, 2)))
        failed = await client.receive_a(Failed)
        assert failed.details == {
            "index": 2,
            "field": "prompt[3]",
            "value": "200 x 2 pixels",
            "limit": "a shape to my liking",
        }
        await check_holds_nothing(daemon)


async def test_without_room_for_all_files_none_is_decoded() -> None:
    images = ImageLimits(store_bytes=len(RED) + len(BLUE) + 1500)
    async with running_daemon(images=images) as daemon, raw_client(daemon) as client:
        await client.send(about(1, RED, BLUE))
        assert (await client.receive_a(Failed)).code == "overloaded"
        assert daemon.runner.pictures.n_decoded == 0
        await check_holds_nothing(daemon)


async def test_too_many_images_are_refused_with_their_number() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(about(1, *[RED] * 65))
        failed = await client.receive_a(Failed)
        assert failed.code == "invalid_request"
        expected = {"field": "prompt", "value": "65 images", "limit": "at most 64"}
        assert failed.details == expected
        assert daemon.runner.pictures.n_bytes == 0
        await check_holds_nothing(daemon)


@pytest.mark.parametrize("data", [RED, b"no image"], ids=["image", "no image"])
async def test_a_model_that_reads_no_images_refuses_them_before_any_is_looked_at(
    data: bytes,
) -> None:
    async with running_daemon("layers=0,images=0") as daemon, raw_client(daemon) as client:
        await client.send(about(1, "a", data), about(2, MediaPart(sha256=bytes(32))))
        for failed in (await failures(client, 2)).values():
            assert (failed.code, failed.retryable) == ("unsupported", False)
        assert daemon.runner.pictures.n_bytes == daemon.runner.pictures.n_images == 0
        await check_holds_nothing(daemon)


async def test_wrong_options_are_told_before_any_image_is_looked_at() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(
            Generate(1, [MediaPart(RED)], stop=["\0"]),
            Generate(2, [MediaPart(RED), TokensPart([1] * 600)]),
        )
        failed = await failures(client, 2)
        assert (failed[1].code, failed[2].code) == ("invalid_request", "prompt_too_long")
        assert daemon.runner.pictures.n_bytes == 0


@pytest.mark.parametrize("n_clients", [1, 2])
async def test_files_in_use_leave_no_room_for_more_than_the_store_holds(n_clients: int) -> None:
    """And one connection may fill half of it: there may be two files, but not for one client."""
    images = ImageLimits(store_bytes=len(RED) + len(BLUE) + (1500 if n_clients == 2 else 2100))
    n_most = images.store_bytes if n_clients == 2 else images.store_bytes // 2
    async with (
        running_daemon(load=SteppedEngine, images=images) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await (other if n_clients == 2 else client).send(about(1, RED))
        await engine.at_step()
        await client.send(about(2, BLUE))
        failed = await client.receive_a(Failed)
        assert (failed.request_id, failed.code, failed.retryable) == (2, "overloaded", True)
        assert failed.details["n_bytes_limit"] == n_most
        engine.let_all_go()
        await (other if n_clients == 2 else client).receive_a(Finished, 1)
        await client.send(about(3, BLUE))
        await client.receive_a(Finished, 3)
        await check_holds_nothing(daemon)


async def test_only_generations_take_images() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(
            wire.Tokenize(1, [TextPart("a"), MediaPart(RED)]),
            wire.Embed(2, ["a", [MediaPart(RED)]]),
        )
        failed = await failures(client, 2)
        for request_id, field in ((1, "prompt[1]"), (2, "inputs[1][0]")):
            assert failed[request_id].code == "invalid_request"
            assert failed[request_id].details == {
                "field": field,
                "value": "an image",
                "limit": "text or tokens",
            }
        assert daemon.runner.pictures.n_bytes == 0
