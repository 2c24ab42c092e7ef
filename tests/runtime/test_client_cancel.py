"""The client library amid exceptions and cancellation."""

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.abc import UNIXSocketStream
from msgspec.msgpack import decode

from runnerd.client import Client, ConnectionLost, connect
from runnerd.socket_io import raw_socket, receive
from runnerd_protocol.framing import FrameDecoder
from runnerd_protocol.messages import (
    Accepted,
    ClientMessage,
    GetModel,
    Model,
)
from tests.daemon import PATIENCE_S, running_daemon
from tests.engines import SteppedEngine
from tests.scripted import WELCOME, say, scripted

pytestmark = pytest.mark.anyio


class OfTheCaller(Exception):
    pass


async def test_the_callers_own_exception_arrives_as_it_is() -> None:
    async with running_daemon() as daemon:
        cause = ValueError("cause")
        with pytest.raises(OfTheCaller) as caught:
            async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
                await anext(stream)
                raise OfTheCaller from cause
        assert caught.value.__cause__ is cause
        await daemon.has_all_slots()


async def test_the_callers_own_exception_outlives_the_loss_of_the_connection() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        await say(stream, Accepted(1))

    async with scripted(script) as path:
        with pytest.raises(OfTheCaller):
            async with connect(path) as client, client.generate("x") as stream:
                with pytest.raises(ConnectionLost):
                    await anext(stream)
                raise OfTheCaller


async def test_a_group_of_the_caller_stays_a_group() -> None:
    async with running_daemon() as daemon:
        group = ExceptionGroup("two", [OfTheCaller(1), OfTheCaller(2)])
        with pytest.raises(ExceptionGroup) as caught:
            async with connect(daemon.path):
                raise group
        assert caught.value.exceptions == group.exceptions


async def test_a_cancel_scope_around_a_stream_ends_it_at_the_daemon_too() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with anyio.CancelScope() as scope:
            async with client.generate("x", shift=True) as stream:
                async for _ in stream:
                    scope.cancel()
        assert scope.cancelled_caught
        await daemon.until(lambda: not daemon.runner.batcher or not daemon.runner.batcher.seq_ids)
        assert (await client.complete("y", max_tokens=3)).finished.n_generated == 3


async def test_a_cancel_scope_around_a_connection_ends_all_of_it() -> None:
    async with running_daemon() as daemon:
        with anyio.CancelScope() as scope:
            async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
                async for _ in stream:
                    scope.cancel()
        assert scope.cancelled_caught
        await daemon.until(lambda: daemon.server.n_connections == 0)
        await daemon.has_all_slots()


async def test_a_timeout_around_a_completion_leaves_the_connection_usable() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, connect(daemon.path) as client:
        with anyio.move_on_after(0.05) as scope:
            await client.complete("x")
        assert scope.cancelled_caught
        daemon.engine_as(SteppedEngine).let_all_go()
        assert (await client.complete("y", max_tokens=3)).finished.n_generated == 3
        await daemon.has_all_slots()


async def test_a_stream_whose_block_was_left_gives_nothing_more() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        async with client.generate("x", shift=True) as stream:
            await anext(stream)
        with anyio.fail_after(PATIENCE_S), pytest.raises(ConnectionLost, match="block was left"):
            async for _ in stream:
                pass


async def test_leaving_the_connections_block_ends_its_requests() -> None:
    async with running_daemon() as daemon:
        for _ in range(20):
            async with connect(daemon.path) as client:
                stack = AsyncExitStack()
                await stack.enter_async_context(client.generate("x", shift=True))
                await stack.aclose()
        await daemon.has_all_slots()
        assert daemon.runner.n_waiting == 0


async def silence(stream: UNIXSocketStream) -> None:
    """Welcome a client, and then say nothing until it goes."""
    await say(stream, WELCOME)
    while await receive(raw_socket(stream), 2**16):
        pass


async def test_leaving_the_connections_block_ends_what_other_tasks_wait_for() -> None:
    n_lost = 0

    async def wait(client: Client) -> None:
        nonlocal n_lost
        with pytest.raises(ConnectionLost, match="closed here"):
            await client.status()
        n_lost += 1

    with anyio.fail_after(PATIENCE_S):
        async with scripted(silence) as path, anyio.create_task_group() as tasks:
            async with connect(path) as client:
                for _ in range(3):
                    tasks.start_soon(wait, client)
                await anyio.wait_all_tasks_blocked()
    assert n_lost == 3


async def test_after_the_connections_block_a_call_says_that_it_is_lost() -> None:
    async with scripted(silence) as path:
        async with connect(path) as client:
            pass
        with pytest.raises(ConnectionLost, match="closed here"):
            await client.status()


async def test_a_cancelled_stream_stays_cancelled_after_the_connections_block() -> None:
    async def hold(client: Client) -> None:
        async with client.generate("x"):
            await anyio.sleep_forever()

    async with scripted(silence) as path, anyio.create_task_group() as tasks:
        async with connect(path) as client:
            tasks.start_soon(hold, client)
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert tasks.cancel_scope.cancelled_caught


async def test_what_is_shielded_in_a_cancelled_connection_learns_of_the_loss() -> None:
    with anyio.fail_after(PATIENCE_S):
        async with scripted(silence) as path:
            with anyio.CancelScope() as scope:
                async with connect(path) as client:
                    scope.cancel()
                    with anyio.CancelScope(shield=True), pytest.raises(ConnectionLost):
                        await client.status()


async def test_a_time_out_amid_a_frame_acts_at_once_and_loses_the_connection() -> None:
    has_left = anyio.Event()

    async def read_nothing(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await has_left.wait()

    async with scripted(read_nothing) as path, connect(path) as client:
        with anyio.fail_after(PATIENCE_S):
            with anyio.move_on_after(0.05) as scope:
                await client.complete("x" * 2_000_000)
            assert scope.cancelled_caught
            with pytest.raises(ConnectionLost, match="given up amid its frame"):
                await client.status()
        has_left.set()


async def test_who_waits_behind_a_frame_is_told_when_it_is_given_up() -> None:
    n_told = 0
    has_left = anyio.Event()

    async def read_nothing(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await has_left.wait()

    async def ask(client: Client) -> None:
        nonlocal n_told
        with pytest.raises(ConnectionLost, match="given up amid its frame"):
            await client.status()
        n_told += 1

    async with scripted(read_nothing) as path, connect(path) as client:
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()

                async def send() -> None:
                    with scope:
                        await client.complete("x" * 2_000_000)

                tasks.start_soon(send)
                await anyio.wait_all_tasks_blocked()
                for _ in range(3):
                    tasks.start_soon(ask, client)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        has_left.set()
    assert n_told == 3


async def test_a_request_given_up_before_its_frame_leaves_the_connection_usable() -> None:
    has_left = anyio.Event()

    async def read_late(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await has_left.wait()
        frames = FrameDecoder()
        while True:
            for payload in frames.feed(await receive(raw_socket(stream), 2**16)):
                request = decode(payload, type=ClientMessage)
                if isinstance(request, GetModel):
                    await say(stream, Model(request.request_id, "late", 1, 1, 1))

    async with scripted(read_late) as path, connect(path) as client:
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(2000):  # more than fit into the socket's buffer
                    tasks.start_soon(client.status)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            has_left.set()
            assert (await client.model()).name == "late"


async def test_a_cancel_before_a_frame_leaves_the_connection_usable() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with anyio.move_on_after(0):
            await client.complete("x" * 2_000_000, truncate=True)
        assert (await client.complete("y", max_tokens=3)).finished.n_generated == 3
