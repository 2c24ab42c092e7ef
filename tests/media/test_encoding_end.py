"""What becomes of an encode that fails, hangs, or is wanted no more."""

import anyio
import pytest
from anyio import to_thread

from runnerd.client import connect
from runnerd.condition import health, image_cache_bytes
from runnerd.core.prompt import ImagePart
from runnerd.errors import EngineBroken, EngineFailed
from runnerd.media.files import Holder, Picture
from tests.daemon import PATIENCE_S, running_daemon
from tests.media.encode_engine import EncodeEngine, Request, answer, ask, submit, until_running

pytestmark = pytest.mark.anyio

OPTIONS = "layers=1,patch=8"


# --- failures ----------------------------------------------------------------------------------


async def test_an_image_that_cannot_be_encoded_fails_those_who_need_it_and_nobody_else() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine, n_slots=8) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.bad = {1}
        engine.shut()
        bad, good = [Request(), Request()], [Request(), Request()]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, good[0], 0)
            await engine.at_encode()
            tasks.start_soon(ask, daemon, good[1], "text and", 2)
            for number, request in enumerate(bad):
                tasks.start_soon(ask, daemon, request, f"bad {number}", 1, "?")
            await until_running(daemon, 4)
            engine.open()
        assert [str(each.ending) for each in bad] == ["image 1 is bad"] * 2
        assert all(isinstance(each.ending, EngineFailed) for each in bad)
        assert [each.ending for each in good] == ["length", "length"]
        assert sum(each.count(1) for each in engine.encodes) == 1
        engine.bad = set()
        assert (await answer(daemon, "once more", 1)).ending == "length"


async def test_a_call_that_fails_as_a_whole_fails_who_needs_its_images() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.error = EngineFailed("no memory for images")
        assert str((await answer(daemon, 1)).ending) == "no memory for images"
        assert (await answer(daemon, "text")).ending == "length"
        engine.error = None
        assert (await answer(daemon, 1)).ending == "length"


async def test_an_image_whose_file_has_gone_is_not_waited_for() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        request = Request()
        submit(daemon, request, [ImagePart(77, 16, 16)], 3)
        with anyio.fail_after(PATIENCE_S):
            await request.has_ended.wait()
        assert isinstance(request.ending, EngineFailed)


async def test_an_image_that_cannot_be_decoded_once_more_fails_who_needs_it() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        files, request = daemon.runner.pictures.files, Request()
        broken = files.hold(Holder(), bytes(32), b"no image")
        assert broken is not None
        files.note(broken, Picture(77, 16, 16))
        submit(daemon, request, [ImagePart(77, 16, 16)], 3)
        with anyio.fail_after(PATIENCE_S):
            await request.has_ended.wait()
        assert isinstance(request.ending, EngineFailed)
        assert (await answer(daemon, 1)).ending == "length"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), EngineBroken("the projector broke")])
async def test_what_must_not_happen_in_the_encoder_ends_the_runner(error: Exception) -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.error = error
        engine.shut()
        requests = [Request(), Request()]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, requests[0], 1)
            await engine.at_encode()
            tasks.start_soon(lambda: ask(daemon, requests[1], "text", n_tokens=400))
            await requests[1].has_begun.wait()
            engine.open()
        assert all(isinstance(each.ending, EngineFailed) for each in requests)
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert daemon.error is error
        assert daemon.runner.state == "failed"


# --- cancels -----------------------------------------------------------------------------------


async def test_one_who_is_cancelled_takes_no_image_from_another() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        one, other = Request(), Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, one, "one", 1)
            await engine.at_encode()
            tasks.start_soon(ask, daemon, other, "other", 1)
            await until_running(daemon, 2)
            daemon.runner.end(one.seq_id, "cancelled")
            await one.has_ended.wait()
            engine.open()
        assert (one.ending, other.ending) == ("cancelled", "length")
        assert engine.encodes == [[1]]


async def test_what_nobody_wants_any_more_is_encoded_to_its_end_and_kept() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        one = Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, one, "one", 1)
            await engine.at_encode()
            daemon.runner.end(one.seq_id, "cancelled")
            await one.has_ended.wait()
            engine.open()
        await daemon.until(lambda: image_cache_bytes(daemon.runner) > 0)
        assert (await answer(daemon, "two", 1)).ending == "length"
        assert engine.encodes == [[1]]


async def test_what_nobody_wants_any_more_is_not_begun() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        first, second = Request(), Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, first, 1)
            await engine.at_encode()
            tasks.start_soon(ask, daemon, second, 2)
            await until_running(daemon, 2)
            daemon.runner.end(second.seq_id, "cancelled")
            await second.has_ended.wait()
            assert (await answer(daemon, "text")).ending == "length"
            engine.open()
        assert engine.encodes == [[1]]


# --- the end -----------------------------------------------------------------------------------


async def test_a_drain_waits_for_an_image_and_its_answer() -> None:
    async with running_daemon(OPTIONS, load=EncodeEngine) as daemon:
        engine = daemon.engine_as(EncodeEngine)
        engine.shut()
        request = Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, request, 1)
            await engine.at_encode()
            daemon.runner.stop()
            engine.open()
        assert request.ending == "length"
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert (daemon.error, daemon.runner.state) == (None, "stopped")


@pytest.mark.parametrize("way", ["drained", "given up"])
async def test_nobody_waits_for_an_encode_that_hangs(way: str) -> None:
    async with running_daemon(OPTIONS) as daemon:
        daemon.engine.faults.hang_encode()
        request = Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, request, 1)
            await to_thread.run_sync(daemon.engine.faults.encode_hanging.wait)
            if way == "drained":
                daemon.runner.stop()
                daemon.runner.cancel_all()
            else:
                daemon.runner.give_up("no more")
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
            await daemon.runner.close()
        assert daemon.error is None
        if way == "drained":
            assert (request.ending, daemon.runner.state) == ("cancelled", "stopped")
        else:
            assert (str(request.ending), daemon.runner.state) == ("no more", "failed")
            assert daemon.engine.faults.encode_hanging.is_set()


async def test_an_encode_that_takes_too_long_is_told() -> None:
    async with running_daemon(OPTIONS, step_timeout_s=0.1) as daemon:
        runner = daemon.runner
        daemon.engine.faults.hang_encode()
        request = Request()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, daemon, request, 1)
            with anyio.fail_after(PATIENCE_S):
                while health(runner) != "stalled":
                    await runner.changed.wait()
            async with connect(daemon.path) as client:
                assert (await client.status()).step_age_s >= 0.1
            assert (await answer(daemon, "text")).ending == "length"
            daemon.engine.faults.release()
            with anyio.fail_after(PATIENCE_S):
                while runner.watches.encode.is_late:
                    await runner.changed.wait()
        assert request.ending == "length"
        assert daemon.runner.figures.encode_s >= 0.1
