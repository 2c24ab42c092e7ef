"""Images that come with a request: where they are, and who waits for them."""

from contextlib import AsyncExitStack

import pytest

from runnerd_protocol import messages as wire
from runnerd_protocol.messages import Accepted, Cancel, Delta, Failed, Finished, Generate, MediaPart
from tests.about_images import BLUE, RED, about, hash_of
from tests.daemon import raw_client, running_daemon
from tests.engines import GatedLoad, SteppedEngine
from tests.holding import check_holds_nothing, held
from tests.media.drawn import drawn
from tests.media.encode_engine import EncodeEngine

pytestmark = pytest.mark.anyio


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
        await check_holds_nothing(daemon)


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
        await check_holds_nothing(daemon)


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
