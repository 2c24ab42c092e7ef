"""Images that come with a request: where they are, what is refused, how long they are kept."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from hashlib import sha256

import anyio
import pytest

from runnerd.config import ImageLimits
from runnerd.core.prompt import ImagePart, Part, Prompt
from runnerd.errors import InvalidMedia
from runnerd_protocol import messages as wire
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    MediaPart,
    TextPart,
    TokensPart,
)
from tests.daemon import RawClient, raw_client, running_daemon
from tests.engines import GatedLoad, SteppedEngine
from tests.holding import held, holds_nothing
from tests.media.drawn import drawn
from tests.media.encode_engine import EncodeEngine

pytestmark = pytest.mark.anyio

RED, BLUE = drawn(1), drawn(2)


def hash_of(data: bytes) -> bytes:
    return sha256(data).digest()


def about(request_id: int, *parts: bytes | str | wire.Part, n: int = 1) -> Generate:
    """Ask for three tokens about files, texts and whatever else."""
    prompt: list[wire.Part] = [
        MediaPart(part)
        if isinstance(part, bytes)
        else (TextPart(part) if isinstance(part, str) else part)
        for part in parts
    ]
    return Generate(request_id, prompt, max_tokens=3, temperature=0.0, n=n)


async def failures(client: RawClient, n: int) -> dict[int, Failed]:
    """Return how so many requests have failed, by their ids: which is first is chance."""
    return {
        failed.request_id: failed for failed in [await client.receive_a(Failed) for _ in range(n)]
    }


# --- what is made of them -----------------------------------------------------------------------


async def test_an_image_may_stand_anywhere_and_counts_with_its_marks() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        n_prompt = []
        for at, parts in enumerate([("ab",), (RED, "ab"), ("ab", RED), ("a", RED, "b"), (RED,)]):
            await client.send(about(at, *parts))
            n_prompt.append((await client.receive_a(Finished)).n_prompt)
        n_image = n_prompt[1] - n_prompt[0]
        assert n_image > 2
        assert n_prompt[2:] == [n_prompt[1], n_prompt[1], n_prompt[1] - 2]
        await holds_nothing(daemon)


async def test_the_same_file_twice_in_a_request_is_one_image() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(about(1, RED, "and", RED, MediaPart(sha256=hash_of(RED))))
        await client.receive_a(Finished)
        assert (daemon.runner.pictures.n_images, daemon.runner.pictures.n_decoded) == (1, 1)


async def test_the_completions_of_a_request_share_its_images() -> None:
    async with running_daemon(load=EncodeEngine) as daemon, raw_client(daemon) as client:
        await client.send(about(1, RED, "?", n=4))
        await client.receive_a(Finished)
        assert daemon.engine_as(EncodeEngine).encodes == [[1]]
        assert daemon.runner.pictures.n_images == 1
        await holds_nothing(daemon)


async def test_a_file_that_the_connection_has_sent_may_be_named_by_its_hash() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(about(1, RED, "a"), about(2, MediaPart(sha256=hash_of(RED)), "a"))
        answers = [await client.receive() for _ in range(2)]
        while not isinstance(answers[-1], Finished) or answers[-1].request_id != 2:
            answers.append(await client.receive())
        assert not any(isinstance(answer, wire.MediaWanted) for answer in answers)
        assert daemon.runner.pictures.n_decoded == 1


async def test_a_file_of_the_request_before_is_known_though_it_is_not_read_yet() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        async with daemon.runner.pictures._decoders:
            await client.send(about(1, RED, BLUE), about(2, MediaPart(sha256=hash_of(BLUE)), "a"))
            n_bytes = len(RED) + len(BLUE)
            await daemon.until(lambda: held(daemon)["file bytes"] > n_bytes)
            await client.send(wire.GetStatus(3))
            await client.receive_a(wire.Status)
        answers = [await client.receive()]
        while sum(isinstance(answer, Finished) for answer in answers) < 2:
            answers.append(await client.receive())
        assert not any(isinstance(answer, wire.MediaWanted) for answer in answers)


async def test_a_request_that_is_cancelled_keeps_the_order_of_the_others() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        pictures, large = daemon.runner.pictures, drawn(3, 300, 300, "BMP")
        async with pictures._hashers:
            await client.send(about(1, large), about(2, BLUE))
            await daemon.until(lambda: pictures._hashers.statistics().tasks_waiting == 1)
            await client.send(Cancel(2))
            await client.receive_a(Finished, 2)
            await client.send(about(3, MediaPart(sha256=hash_of(large))), wire.GetStatus(4))
            assert isinstance(await client.receive(), wire.Status)
        answers = [await client.receive()]
        while sum(isinstance(answer, Finished) for answer in answers) < 2:
            answers.append(await client.receive())
        assert not any(isinstance(answer, wire.MediaWanted) for answer in answers)


async def test_images_wait_for_the_load() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(about(1, RED))
        assert (await client.receive_a(Accepted)).state == "loading"
        assert daemon.runner.pictures.n_bytes == 0
        load.let_go()
        await client.receive_a(Finished)


# --- what is refused ----------------------------------------------------------------------------


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
        await holds_nothing(daemon)


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
        await holds_nothing(daemon)


async def test_without_room_for_all_files_none_is_decoded() -> None:
    images = ImageLimits(store_bytes=len(RED) + len(BLUE) + 1500)
    async with running_daemon(images=images) as daemon, raw_client(daemon) as client:
        await client.send(about(1, RED, BLUE))
        assert (await client.receive_a(Failed)).code == "overloaded"
        assert daemon.runner.pictures.n_decoded == 0
        await holds_nothing(daemon)


async def test_too_many_images_are_refused_with_their_number() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(about(1, *[RED] * 65))
        failed = await client.receive_a(Failed)
        assert failed.code == "invalid_request"
        expected = {"field": "prompt", "value": "65 images", "limit": "at most 64"}
        assert failed.details == expected
        assert daemon.runner.pictures.n_bytes == 0
        await holds_nothing(daemon)


@pytest.mark.parametrize("data", [RED, b"no image"], ids=["image", "no image"])
async def test_a_model_that_reads_no_images_refuses_them_before_any_is_looked_at(
    data: bytes,
) -> None:
    async with running_daemon("layers=0,images=0") as daemon, raw_client(daemon) as client:
        await client.send(about(1, "a", data), about(2, MediaPart(sha256=bytes(32))))
        for failed in (await failures(client, 2)).values():
            assert (failed.code, failed.retryable) == ("unsupported", False)
        assert daemon.runner.pictures.n_bytes == daemon.runner.pictures.n_images == 0
        await holds_nothing(daemon)


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
        await holds_nothing(daemon)


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


# --- how long they are kept ---------------------------------------------------------------------


async def test_files_are_kept_to_the_last_answer_and_count_as_intake_no_more() -> None:
    async with (
        running_daemon(load=SteppedEngine) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(about(1, RED, "x"))
        await engine.at_step()
        assert held(daemon)["file bytes"] > len(RED)
        assert held(daemon)["intake bytes"] == 0
        engine.let_all_go()
        await client.receive_a(Finished)
        await holds_nothing(daemon)


async def test_a_file_of_two_requests_is_kept_for_the_one_that_is_left() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SteppedEngine)
        await client.send(about(1, RED, "x"))
        await engine.at_step()
        await client.send(about(2, RED, "y"))
        await client.receive_a(Accepted, 2)
        n_bytes = held(daemon)["file bytes"]
        await client.send(Cancel(2))
        await client.receive_a(Finished, 2)
        assert held(daemon)["file bytes"] == n_bytes > 0
        engine.let_all_go()
        await client.receive_a(Finished, 1)
        await holds_nothing(daemon)


async def test_a_client_that_goes_lets_go_of_its_files() -> None:
    async with running_daemon(load=SteppedEngine) as daemon:
        engine = daemon.engine_as(SteppedEngine)
        async with raw_client(daemon) as client:
            await client.send(about(1, RED, "x"))
            await engine.at_step()
        engine.let_all_go()
        await holds_nothing(daemon)


async def test_an_engine_that_fails_lets_go_of_the_files() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SteppedEngine)
        await client.send(about(1, RED, "x"))
        await engine.at_step()
        daemon.runner.give_up("no reason")
        await client.receive_a(Failed)
        assert not any(held(daemon).values())


async def test_an_image_that_cannot_be_encoded_is_let_go_of() -> None:
    async with running_daemon(load=EncodeEngine) as daemon, raw_client(daemon) as client:
        daemon.engine_as(EncodeEngine).bad.add(1)
        await client.send(about(1, RED, "x", n=2))
        assert (await client.receive_a(Failed)).code == "engine_failed"
        await holds_nothing(daemon)


async def test_when_the_time_for_draining_is_over_the_files_are_let_go_of() -> None:
    async with running_daemon(load=EncodeEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        await client.send(about(1, RED, "x"))
        await engine.at_encode()
        daemon.runner.stop()
        assert held(daemon)["file bytes"] > 0
        daemon.runner.cancel_all()
        assert (await client.receive_a(Finished)).reason == "cancelled"
        assert not any(held(daemon).values())


async def test_a_daemon_that_stops_decodes_no_more_files() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        pictures = daemon.runner.pictures
        async with pictures._decoders:
            await client.send(about(1, RED, BLUE), about(2, drawn(3)))
            await daemon.until(lambda: held(daemon)["file bytes"] > len(RED) + len(BLUE) + 3000)
            await daemon.until(lambda: pictures._decoders.statistics().tasks_waiting == 1)
            daemon.runner.stop()
        for failed in (await failures(client, 2)).values():
            assert (failed.code, failed.retryable) == ("shutting_down", True)
        assert pictures.n_decoded == 0
        assert not any(held(daemon).values())


@pytest.mark.parametrize("n_rounds", range(0, 40, 3))
async def test_a_cancel_at_any_moment_leaves_nothing_behind(n_rounds: int) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(about(1, RED, "x", BLUE))
        await daemon.until(lambda: held(daemon)["places"] + held(daemon)["intake bytes"] > 0)
        for _ in range(n_rounds):
            await anyio.lowlevel.checkpoint()
        await client.send(Cancel(1))
        finished = await client.receive_a(Finished)
        assert finished.reason in ("cancelled", "length")
        await holds_nothing(daemon)


# --- who waits ----------------------------------------------------------------------------------


async def test_texts_behind_an_image_do_not_wait_for_it() -> None:
    async with running_daemon(load=EncodeEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        await client.send(about(1, RED, "x"), about(2, "x"))
        assert (await client.receive_a(Finished)).request_id == 2
        engine.open()
        assert (await client.receive_a(Finished)).request_id == 1


async def test_an_image_holds_its_place_while_it_is_read() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1, max_queue=1) as daemon,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(raw_client(daemon)) for _ in range(2)]
        engine = daemon.engine_as(SteppedEngine)
        await clients[0].send(Generate(1, "x", shift=True))
        await engine.at_step()
        await clients[0].send(about(2, MediaPart(sha256=bytes(32))))
        await clients[0].receive_a(wire.MediaWanted)
        await clients[1].send(about(3, "x"))
        assert (await clients[1].receive_a(Failed)).code == "overloaded"
        engine.let_all_go()
        await clients[0].receive_a(Delta, 1)
