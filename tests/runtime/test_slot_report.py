"""What a status says of each slot: whose request it works for, and how far that is."""

from contextlib import AsyncExitStack

import anyio
import pytest

from runnerd.client import connect
from runnerd.condition import slots
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import Options
from runnerd.media.files import Holder
from runnerd.media.store import Lease
from runnerd_protocol.messages import Accepted, Generate, GetStatus, SlotStatus, Status
from tests.daemon import PATIENCE_S, RawClient, raw_client, running_daemon, started
from tests.engines import GatedLoad, SteppedEngine
from tests.media.encode_engine import EncodeEngine, Request, image, submit, until_running
from tests.statuses import until_status

pytestmark = pytest.mark.anyio

ANY_PROMPT = "0123456789" * 3


async def slots_of(client: RawClient) -> list[SlotStatus]:
    await client.send(GetStatus(99))
    return (await client.receive_a(Status, 99)).slots


async def test_there_are_no_slots_before_the_model_is_there() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        connect(daemon.path) as client,
    ):
        assert (await client.status()).slots == []
        load.let_go()


async def test_idle_slots_say_what_they_have_cached() -> None:
    async with running_daemon(n_slots=3) as daemon, connect(daemon.path) as client:
        assert (await client.status()).slots == [SlotStatus(n, "idle") for n in range(3)]
        done = await client.complete(ANY_PROMPT, max_tokens=1)
        cached = [slot.n_cached for slot in (await client.status()).slots]
        assert sorted(cached) == [0, 0, done.finished.n_prompt]


async def test_a_slot_tells_of_its_request_from_the_prompt_to_the_last_token() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=2, n_batch=10) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(7, ANY_PROMPT, max_tokens=3))
        await engine.at_step()
        await engine.step()
        (slot,) = [each for each in await slots_of(client) if each.state != "idle"]
        n_prompt = slot.n_prompt
        assert (slot.state, slot.client_request_id, slot.n_evaluated) == ("prompt", 7, 10)
        assert n_prompt >= len(ANY_PROMPT)
        assert (slot.n_cached, slot.n_generated) == (0, 0)
        while not slot.n_generated:
            await engine.step()
            (slot,) = [each for each in await slots_of(client) if each.state != "idle"]
        assert (slot.state, slot.n_evaluated, slot.n_generated) == ("generating", n_prompt, 1)
        assert slot.age_s > 0
        engine.let_all_go()


async def test_what_was_cached_is_not_evaluated() -> None:
    async with running_daemon(n_slots=1) as daemon, connect(daemon.path) as client:
        await client.complete(ANY_PROMPT, max_tokens=0)
        async with client.generate(ANY_PROMPT + "more", shift=True) as stream:
            await anext(stream)
            (slot,) = (await client.status()).slots
            assert slot.n_cached > 0
            assert slot.n_cached + slot.n_evaluated == slot.n_prompt


async def test_a_request_whose_client_does_not_read_is_paused() -> None:
    async with (
        running_daemon() as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        await started(client, stack, 1)
        batcher = daemon.runner.batcher
        assert batcher is not None
        daemon.runner.pause(batcher.seq_ids[0], paused=True)
        states = [slot.state for slot in (await client.status()).slots]
        assert sorted(states) == ["idle", "idle", "idle", "paused"]


async def test_a_request_whose_image_is_encoded_awaits_it() -> None:
    async with (
        running_daemon("layers=1,patch=8", load=EncodeEngine) as daemon,
        connect(daemon.path) as client,
    ):
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        with Lease(daemon.runner.pictures, Holder()) as lease:
            request = Request()
            submit(daemon, request, [await image(lease, 1)], 1)
            await engine.at_encode()
            await until_running(daemon, 1)
            await until_status(  # the text before the image is evaluated meanwhile
                client,
                lambda status: [slot.state for slot in status.slots].count("awaiting_media") == 1,
            )
            engine.open()
            with anyio.fail_after(PATIENCE_S):
                await request.has_ended.wait()


async def test_the_oldest_wait_is_that_of_the_next_in_the_queue() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", shift=True))
        await engine.at_step()
        await client.send(GetStatus(9))
        assert (await client.receive_a(Status)).oldest_wait_s == 0
        await client.send(Generate(2, "y", max_tokens=1))
        await client.receive_a(Accepted, 2)
        waits: list[float] = [0.0]
        with anyio.fail_after(PATIENCE_S):
            while waits[-1] == 0.0:  # told in milliseconds
                await client.send(GetStatus(9))
                status = await client.receive_a(Status)
                assert status.n_waiting == 1
                waits.append(status.oldest_wait_s)
        await engine.step()
        await client.send(GetStatus(9))
        assert (await client.receive_a(Status)).oldest_wait_s >= waits[-1]
        engine.let_all_go()


async def test_the_report_is_made_once_as_long_as_nothing_moves() -> None:
    async with running_daemon() as daemon:
        runner = daemon.runner
        assert slots(runner, 1.0) is slots(runner, 1.005)
        assert slots(runner, 1.0) is not slots(runner, 2.0)
        before = slots(runner, 3.0)
        request = Request()
        runner.submit(Prompt((1, 2)), Options(max_tokens=1), request.listen)
        with anyio.fail_after(PATIENCE_S):
            await request.has_ended.wait()
        assert slots(runner, 3.0) is not before
