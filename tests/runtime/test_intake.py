"""What requests in preparation may take: of a connection, and of all of them together."""

import anyio
import pytest
from anyio import to_thread

from runnerd.client import connect
from runnerd.config import SessionLimits
from runnerd.intake import Intake, Share
from runnerd_protocol.messages import (
    Cancel,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Status,
    Tokenize,
    Tokens,
)
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.engines import SlowTokenizer, SteppedEngine

pytestmark = pytest.mark.anyio

TEXT = "x" * 10_000


async def has_room(intake: Intake) -> bool:
    """Return whether a connection may be read on right now."""
    with anyio.move_on_after(0):
        await intake.wait_for_room()
        return True
    return False


async def test_a_connection_waits_above_its_limit_until_it_gives_back() -> None:
    intake = Intake(10)
    intake.take(11)
    assert not await has_room(intake)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.wait_for_room)
        await anyio.wait_all_tasks_blocked()
        intake.give_back(1)
    assert await has_room(intake)


async def test_a_share_is_given_back_once_however_it_was_cut_and_moved() -> None:
    first, second = Intake(10), Intake(10)
    share = Share(first, 9)
    share.shrink(4)
    assert (first.n_bytes, second.n_bytes) == (5, 0)
    share.move_to(second)
    assert (first.n_bytes, second.n_bytes) == (0, 5)
    for _ in range(2):
        share.give_back()
        assert (first.n_bytes, second.n_bytes) == (0, 0)


async def test_where_all_have_too_much_only_those_with_nothing_go_on() -> None:
    whole = Intake(10)
    one, other = Intake(10, whole), Intake(10, whole)
    one.take(7)
    assert await has_room(one)
    other.take(5)
    assert not await has_room(one)
    assert await has_room(Intake(10, whole))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.wait_for_room)
        await anyio.wait_all_tasks_blocked()
        other.give_back(5)
    assert (one.n_bytes, other.n_bytes, whole.n_bytes) == (7, 0, 7)


async def test_a_client_is_not_read_while_too_much_of_it_is_in_preparation() -> None:
    limits = SessionLimits(intake_bytes=2 * len(TEXT))
    async with (
        running_daemon(load=SlowTokenizer, limits=limits) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        engine = daemon.engine_as(SlowTokenizer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send, *(Tokenize(i, TEXT) for i in range(100)))
            await to_thread.run_sync(engine.started.wait)
            await daemon.until(lambda: daemon.runner.intake.n_bytes > 2 * len(TEXT))
            await other.send(GetStatus(1))
            await other.receive_a(Status)
            assert daemon.runner.intake.n_bytes < 4 * len(TEXT)
            engine.may_end.set()
            for _ in range(100):
                await client.receive_a(Tokens)
        assert daemon.runner.intake.n_bytes == 0


async def test_a_request_counts_no_more_once_it_waits_for_a_slot() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(*(Generate(i, TEXT, truncate=True, max_tokens=1) for i in range(3)))
        await engine.at_step()
        await daemon.until(lambda: daemon.runner.figures.n_requests == 3)
        assert daemon.runner.intake.n_bytes == 0
        engine.let_all_go()
        for _ in range(3):
            await client.receive_a(Finished)


async def test_whatever_ends_a_request_gives_its_bytes_back() -> None:
    async with running_daemon(load=SlowTokenizer) as daemon:
        engine = daemon.engine_as(SlowTokenizer)
        async with raw_client(daemon) as client, raw_client(daemon) as leaver:
            await client.send(Generate(1, TEXT), Generate(2, TEXT), Generate(3, "x", logprobs=9))
            await leaver.send(Tokenize(1, TEXT))
            await to_thread.run_sync(engine.started.wait)
            await daemon.until(lambda: daemon.runner.intake.n_bytes > 3 * len(TEXT))
            await client.send(Cancel(2))
            await client.receive_a(Finished, 2)
            await leaver.stream.aclose()
            engine.may_end.set()
            assert (await client.receive_a(Failed, 1)).code == "prompt_too_long"
        await daemon.until(lambda: daemon.server.n_connections == 0)
        assert daemon.runner.intake.n_bytes == 0


async def test_a_frame_that_came_while_nothing_was_read_is_not_late() -> None:
    limits = SessionLimits(intake_bytes=len(TEXT), frame_timeout_s=0.3)
    async with (
        running_daemon(load=SlowTokenizer, limits=limits) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SlowTokenizer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send, *(Tokenize(i, TEXT) for i in range(30)))
            await to_thread.run_sync(engine.started.wait)
            with anyio.move_on_after(2 * limits.frame_timeout_s):
                await client.receive()
            engine.may_end.set()
            answered = {(await client.receive_a(Tokens)).request_id for _ in range(30)}
            assert answered == set(range(30))


async def test_a_limited_client_with_a_prompt_above_the_limit_is_served() -> None:
    limits = SessionLimits(intake_bytes=1)
    with anyio.fail_after(PATIENCE_S):
        async with running_daemon(limits=limits) as daemon, connect(daemon.path) as client:
            assert len(await client.tokenize(TEXT)) == len(TEXT) + 1
