"""Images that come with a request: how long their files are kept."""

import anyio
import pytest

from runnerd_protocol.messages import Accepted, Cancel, Failed, Finished
from tests.about_images import BLUE, RED, about, failures
from tests.daemon import raw_client, running_daemon
from tests.engines import SteppedEngine
from tests.holding import check_holds_nothing, held
from tests.media.drawn import drawn
from tests.media.encode_engine import EncodeEngine

pytestmark = pytest.mark.anyio


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
        await check_holds_nothing(daemon)


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
        await check_holds_nothing(daemon)


async def test_a_client_that_goes_lets_go_of_its_files() -> None:
    async with running_daemon(load=SteppedEngine) as daemon:
        engine = daemon.engine_as(SteppedEngine)
        async with raw_client(daemon) as client:
            await client.send(about(1, RED, "x"))
            await engine.at_step()
        engine.let_all_go()
        await check_holds_nothing(daemon)


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
        await check_holds_nothing(daemon)


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
        await check_holds_nothing(daemon)
