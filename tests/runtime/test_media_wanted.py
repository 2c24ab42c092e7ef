"""Files that came by their hashes: when they are asked for, and what becomes of the answers."""

import anyio
import pytest

from runnerd.config import ImageLimits, SessionLimits
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    ClientMessage,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Media,
    MediaPart,
    MediaWanted,
    Part,
    Status,
    TextPart,
)
from tests.about_images import BLUE, RED, hash_of
from tests.daemon import PATIENCE_S, RawClient, raw_client, running_daemon
from tests.engines import GatedLoad
from tests.holding import check_holds_nothing, held
from tests.media.drawn import drawn

pytestmark = pytest.mark.anyio

QUICK = SessionLimits(media_timeout_s=0.2)


def named(request_id: int, *files: bytes, text: str = "x", **options: float) -> Generate:
    """Ask about files by their hashes."""
    prompt: list[Part] = [MediaPart(sha256=hash_of(data)) for data in files]
    prompt.append(TextPart(text))
    timeout_s = options.get("queue_timeout_s")
    return Generate(request_id, prompt, max_tokens=2, queue_timeout_s=timeout_s)


async def wanted(client: RawClient, request_id: int = 1) -> list[bytes]:
    """Return what the daemon asks for."""
    return (await client.receive_a(MediaWanted, request_id)).sha256


async def test_each_unknown_file_is_asked_for_once_after_the_request_is_accepted() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED, BLUE, RED))
        assert await client.receive() == Accepted(1)
        assert await client.receive() == MediaWanted(1, [hash_of(RED), hash_of(BLUE)])
        await client.send(Media(1, BLUE), Media(1, RED))
        await client.receive_a(Finished)
        assert daemon.runner.pictures.n_images == 2
        await check_holds_nothing(daemon)


async def test_a_file_that_was_asked_for_is_known_from_then_on() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED))
        await wanted(client)
        await client.send(Media(1, RED))
        await client.receive_a(Finished)
        await client.send(named(2, RED))
        assert await client.receive() == Accepted(2)
        await client.receive_a(Finished)


async def test_what_is_here_with_the_request_is_read_before_the_rest_is_asked_for() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, [MediaPart(b"no image"), MediaPart(sha256=hash_of(RED))]))
        failed = await client.receive()
        assert isinstance(failed, Failed)
        assert (failed.code, failed.details["index"]) == ("invalid_media", 0)


async def test_a_file_of_another_connection_is_asked_for_though_the_daemon_has_it() -> None:
    async with (
        running_daemon() as daemon,
        raw_client(daemon) as owner,
        raw_client(daemon) as curious,
    ):
        await owner.send(Generate(1, [MediaPart(RED)], max_tokens=1))
        await owner.receive_a(Finished)
        await curious.send(named(1, RED))
        assert await wanted(curious) == [hash_of(RED)]
        await curious.send(Media(1, RED))
        await curious.receive_a(Finished)
        assert daemon.runner.pictures.n_decoded == 1


async def test_a_file_that_was_thrown_out_is_asked_for_again() -> None:
    images = ImageLimits(store_bytes=len(RED) + 1500)
    async with running_daemon(images=images) as daemon, raw_client(daemon) as client:
        for request_id, data in enumerate([RED, BLUE]):
            await client.send(Generate(request_id, [MediaPart(data)], max_tokens=1))
            await client.receive_a(Finished)
        await client.send(named(3, RED))
        assert await wanted(client, 3) == [hash_of(RED)]
        await client.send(Media(3, RED))
        await client.receive_a(Finished)


async def test_files_that_were_not_asked_for_are_ignored() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Media(1, RED), Media(7, RED), named(1, RED), Media(1, RED))
        assert await wanted(client) == [hash_of(RED)]
        await client.send(Media(1, BLUE), Media(1, b""), Media(7, RED), Media(1, RED))
        await client.send(Media(1, RED), Media(1, BLUE))
        await client.receive_a(Finished)
        await client.send(Media(1, RED), GetStatus(2))
        await client.receive_a(Status)
        assert (daemon.runner.pictures.n_images, daemon.runner.pictures.n_decoded) == (1, 1)
        await check_holds_nothing(daemon)


async def test_a_file_that_is_no_image_fails_the_request_by_its_first_part() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED, b"no image", b"no image"))
        await wanted(client)
        await client.send(Media(1, b"no image"))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.details["index"]) == ("invalid_media", 1)
        assert failed.details["field"] == "prompt[1]"
        await check_holds_nothing(daemon)


async def test_a_file_that_comes_before_it_is_asked_for_is_ignored() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(named(1, RED))
        await client.receive_a(Accepted)
        await client.send(Media(1, RED), GetStatus(2))
        await client.receive_a(Status)
        load.let_go()
        assert await wanted(client) == [hash_of(RED)]
        await client.send(Media(1, RED))
        await client.receive_a(Finished)
        await check_holds_nothing(daemon)


# --- what does not come -------------------------------------------------------------------------


async def test_a_file_that_does_not_come_in_time_fails_the_request() -> None:
    async with running_daemon(limits=QUICK) as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED, BLUE))
        await wanted(client)
        await client.send(Media(1, RED), Media(1, b"something else"))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.retryable) == ("invalid_media", False)
        assert failed.message == (
            "image 1: a file that was not sent within 0.2 s, expected the file"
        )
        assert failed.details["field"] == "prompt[1]"
        await check_holds_nothing(daemon)


async def test_a_frame_that_has_begun_in_time_is_waited_for() -> None:
    async with running_daemon(limits=QUICK) as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED))
        await wanted(client)
        frame = encode_frame(Media(1, RED))
        for at in range(0, len(frame), len(frame) // 5):
            await client.send(bytes(frame[at : at + len(frame) // 5]))
            await anyio.sleep(QUICK.media_timeout_s / 2)
        await client.receive_a(Finished)
        await check_holds_nothing(daemon)


async def test_files_of_other_requests_prolong_the_wait() -> None:
    async with running_daemon(limits=QUICK) as daemon, raw_client(daemon) as client:
        files = [drawn(10 + number) for number in range(4)]
        await client.send(*[named(number, data) for number, data in enumerate(files)])
        for _ in files:
            await client.receive_a(MediaWanted)
        for number, data in enumerate(files):
            await anyio.sleep(QUICK.media_timeout_s / 2)
            await client.send(Media(number, data))
            await client.receive_a(Finished, number)
        await check_holds_nothing(daemon)


@pytest.mark.parametrize("junk", [Media(999, bytes(60000)), Media(1, bytes(60000)), Cancel(77)])
async def test_nothing_else_that_is_sent_prolongs_the_wait(junk: ClientMessage) -> None:
    async with running_daemon(limits=QUICK) as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED))
        await wanted(client)
        frame = bytes(encode_frame(junk))

        async def send_junk() -> None:
            while True:  # so that the next frame has always begun
                await client.send(frame[-5:], frame[:-5])
                await anyio.sleep(QUICK.media_timeout_s / 10)

        await client.send(frame[:-5])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_junk)
            assert "not sent" in (await client.receive_a(Failed)).message
            tasks.cancel_scope.cancel()


async def test_new_questions_prolong_no_wait_without_end() -> None:
    async with running_daemon(limits=QUICK) as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED))
        await wanted(client)
        n_sent = 0

        async def send_others() -> None:
            nonlocal n_sent
            for number in range(2, 200):
                n_sent += 1
                await client.send(named(number, drawn(number)))
                await anyio.sleep(QUICK.media_timeout_s / 4)
                await client.send(Media(number, drawn(number)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_others)
            assert (await client.receive_a(Failed)).request_id == 1
            assert n_sent < 100
            tasks.cancel_scope.cancel()


async def test_the_time_in_which_the_daemon_does_not_read_does_not_count() -> None:
    limits = SessionLimits(media_timeout_s=0.2, intake_bytes=1000)
    async with (
        running_daemon(limits=limits, n_ctx=4096) as daemon,
        raw_client(daemon) as client,
    ):
        decoders = daemon.runner.pictures._decoders
        async with decoders:
            await client.send(named(1, RED))
            await wanted(client)
            await client.send(Generate(2, [MediaPart(BLUE), TextPart("x" * 2000)], max_tokens=1))
            await daemon.until(lambda: decoders.statistics().tasks_waiting == 1)
            await client.send(Media(1, RED))
            await anyio.sleep(2 * limits.media_timeout_s)
        for _ in range(2):
            assert (await client.receive_a(Finished)).request_id in (1, 2)
        await check_holds_nothing(daemon)


async def test_a_client_that_sends_no_more_is_not_waited_for() -> None:
    async with running_daemon() as daemon:
        async with raw_client(daemon) as client:
            await client.send(named(1, RED), Generate(2, [MediaPart(RED)], max_tokens=1))
            client.shut_down_sending()
            with anyio.fail_after(PATIENCE_S):
                answers = await client.rest()
        failed = next(answer for answer in answers if isinstance(answer, Failed))
        assert failed.details["value"] == "a file that the client cannot send any more"
        assert any(isinstance(answer, Finished) for answer in answers)
        await check_holds_nothing(daemon)


async def test_a_cancel_ends_the_waiting_for_a_file() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED))
        await wanted(client)
        await client.send(Cancel(1), Media(1, RED))
        assert (await client.receive_a(Finished)).reason == "cancelled"
        await client.send(Media(1, RED), GetStatus(2))
        await client.receive_a(Status)
        assert daemon.runner.pictures.n_images == 0
        await check_holds_nothing(daemon)


@pytest.mark.parametrize("n_rounds", range(0, 40, 4))
async def test_a_cancel_at_any_moment_of_an_upload_leaves_nothing_behind(n_rounds: int) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED, BLUE))
        await wanted(client)
        await client.send(Media(1, BLUE), Media(1, b"something else"), Media(1, RED))
        for _ in range(n_rounds):
            await anyio.lowlevel.checkpoint()
        await client.send(Cancel(1))
        assert (await client.receive_a(Finished)).reason in ("cancelled", "length")
        await check_holds_nothing(daemon)


async def test_a_queue_timeout_ends_the_waiting_for_a_file() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED, queue_timeout_s=0.1))
        await wanted(client)
        assert (await client.receive_a(Failed)).code == "queue_timeout"
        await check_holds_nothing(daemon)


async def test_a_client_that_goes_is_not_waited_for() -> None:
    async with running_daemon() as daemon:
        async with raw_client(daemon) as client:
            await client.send(named(1, RED))
            await wanted(client)
        await check_holds_nothing(daemon)


async def test_a_daemon_that_stops_waits_for_no_files() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(named(1, RED))
        await wanted(client)
        daemon.runner.stop()
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.retryable) == ("shutting_down", True)
        assert not any(held(daemon).values())


# --- who waits for whom -------------------------------------------------------------------------


async def test_whoever_waits_for_a_file_holds_up_neither_its_connection_nor_others() -> None:
    limits = SessionLimits(intake_bytes=1000)
    async with (
        running_daemon(limits=limits, n_ctx=2048) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        await client.send(named(1, RED, text="x" * 300))
        await wanted(client)
        await client.send(named(2, BLUE, text="y" * 900))
        await wanted(client, 2)
        for each, request_id in ((client, 3), (other, 3)):
            await each.send(Generate(request_id, "x", max_tokens=1))
            await each.receive_a(Finished, request_id)
        assert held(daemon)["intake bytes"] == 0
        await client.send(named(4, drawn(3), text="z" * 100))
        failed = await client.receive_a(Failed, 4)
        assert (failed.code, failed.retryable) == ("overloaded", True)
        await client.send(Media(2, BLUE), Media(1, RED))
        for _ in range(2):
            assert (await client.receive_a(Finished)).request_id in (1, 2)
        await check_holds_nothing(daemon)
