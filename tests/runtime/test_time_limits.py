"""Time limits of a session, on a clock that jumps: trio's, for want of one on asyncio."""

import socket
from contextlib import AsyncExitStack, suppress

import anyio
import pytest
from anyio.abc import SocketAttribute
from trio.testing import MockClock

from runnerd.client import connect
from runnerd.config import SessionLimits
from runnerd.frame_room import ROOM_BYTES, SMALL_BYTES
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Detokenize,
    Finished,
    Generate,
    ProtocolError,
    Subscribe,
)
from tests.daemon import HELLO, Daemon, RawClient, raw_client, running_daemon

pytestmark = pytest.mark.anyio

LARGE_BYTES = 16 * 2**20
# A large frame that is answered by the daemon's loop: a thread takes time that no clock jumps over.
WRONG = (16 * SMALL_BYTES).to_bytes(4) + b"x" * 16 * SMALL_BYTES


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, MockClock]]:
    # Not at once: an engine's thread needs real time that the clock does not see.
    return "trio", {"clock": MockClock(autojump_threshold=0.05)}


async def test_without_a_hello_a_connection_is_closed() -> None:
    async with running_daemon() as daemon, raw_client(daemon, greets=False) as client:
        started_at = anyio.current_time()
        (error,) = await client.rest()
        assert isinstance(error, ProtocolError)
        assert error.code == "handshake_timeout"
        assert anyio.current_time() - started_at == pytest.approx(10, rel=0.1)


async def test_a_hello_byte_by_byte_does_not_put_the_deadline_off() -> None:
    async with running_daemon() as daemon, raw_client(daemon, greets=False) as client:
        started_at = anyio.current_time()
        for byte in encode_frame(HELLO)[:4]:
            await client.send(bytes([byte]))
            await anyio.sleep(2)
        (error,) = await client.rest()
        assert isinstance(error, ProtocolError)
        assert error.code == "handshake_timeout"
        assert anyio.current_time() - started_at == pytest.approx(10, rel=0.1)


async def test_a_frame_byte_by_byte_does_not_put_the_deadline_off() -> None:
    frame = encode_frame(Generate(1, "x" * 100))
    async with running_daemon() as daemon, raw_client(daemon) as client:
        started_at = anyio.current_time()
        for byte in frame[:5]:
            await client.send(bytes([byte]))
            await anyio.sleep(5)
        (error,) = await client.rest()
        assert isinstance(error, ProtocolError)
        assert error.code == "frame_timeout"
        assert anyio.current_time() - started_at == pytest.approx(30, rel=0.1)


async def test_each_frame_has_a_deadline_of_its_own() -> None:
    frame = encode_frame(Generate(1, "x", max_tokens=1))
    async with running_daemon() as daemon, raw_client(daemon) as client:
        for _ in range(3):  # the rest of one and the start of the next come together
            await client.send(frame[:10])
            await anyio.sleep(19)
            await client.send(frame[10:] + frame[:10])
            await anyio.sleep(19)
            await client.send(frame[10:])
            for _ in range(2):
                await client.receive_a(Finished)


async def test_an_idle_connection_is_never_closed() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await anyio.sleep(10 * 86400)
        await client.send(Generate(1, "x", max_tokens=1))
        await client.receive_a(Finished)


async def test_a_client_that_takes_its_answers_drop_by_drop_is_cut_off() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        for session in daemon.server._sessions.values():
            sock = session._stream.extra(SocketAttribute.raw_socket)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        started_at = anyio.current_time()
        await client.send(Detokenize(1, [65] * 100_000))
        await anyio.wait_readable(client.socket)
        n_bytes = 0
        while data := client.socket.recv(1024):
            n_bytes += len(data)
            if daemon.server.n_connections:
                await anyio.sleep(2)  # well within the time for taking anything at all
        assert 20_000 < n_bytes < 100_000
        assert anyio.current_time() - started_at == pytest.approx(120, rel=0.1)


async def test_a_byte_a_second_is_not_taking_what_waits() -> None:
    asked = [Generate(i, "x", shift=True, return_tokens=True, logprobs=5) for i in range(4)]
    async with running_daemon() as daemon, raw_client(daemon) as client:
        started_at = anyio.current_time()
        await client.send(*asked)
        await daemon.until(lambda: _n_paused(daemon) == len(asked))
        while daemon.server.n_connections:
            await anyio.wait_readable(client.socket)
            client.socket.recv(1)
            await anyio.sleep(1)
        assert anyio.current_time() - started_at == pytest.approx(30, rel=0.2)
        await daemon.has_all_slots()


async def test_of_a_crowd_that_dawdles_only_the_idle_stay_and_nobody_else_waits() -> None:
    closed_at: dict[str, list[float]] = {"silent": [], "length": [], "body": []}
    frame = encode_frame(Generate(1, "x" * 2**20))

    async def dawdle(kind: str, data: bytes, interval_s: float) -> None:
        async with raw_client(daemon, greets=kind != "silent") as client:
            async with anyio.create_task_group() as tasks:
                if data:
                    tasks.start_soon(send_slowly, client, data, interval_s)
                await anyio.wait_readable(client.socket)
                (error,) = await client.rest()
                tasks.cancel_scope.cancel()
            assert isinstance(error, ProtocolError)
            assert error.code == ("handshake_timeout" if kind == "silent" else "frame_timeout")
            closed_at[kind].append(anyio.current_time() - started_at)

    async def send_slowly(client: RawClient, data: bytes, interval_s: float) -> None:
        with suppress(anyio.BrokenResourceError):
            for byte in data:
                await client.send(bytes([byte]))
                await anyio.sleep(interval_s)

    async with running_daemon() as daemon, AsyncExitStack() as idle:
        for _ in range(40):
            await idle.enter_async_context(raw_client(daemon))
        started_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(dawdle, "silent", b"", 0)
                tasks.start_soon(dawdle, "length", frame[:4], 8)
                tasks.start_soon(dawdle, "body", frame[:100], 1)
            for _ in range(8):
                async with connect(daemon.path) as client:
                    asked_at = anyio.current_time()
                    await client.complete("x", max_tokens=3)
                    assert anyio.current_time() - asked_at < 1
                await anyio.sleep(5)
        for kind, limit_s in (("silent", 10), ("length", 30), ("body", 30)):
            assert closed_at[kind] == [pytest.approx(limit_s, rel=0.2)] * 40
        await daemon.until(lambda: daemon.server.n_connections == 40)
        await daemon.has_all_slots()


def _n_paused(daemon: Daemon) -> int:
    assert daemon.runner.batcher is not None
    return sum(sequence.paused for sequence in daemon.runner.batcher.residency.running)


async def test_who_does_not_read_gets_no_more_time_for_a_frame_that_others_wait_for() -> None:
    limits = SessionLimits(max_frame_bytes=2**30, frame_timeout_s=10, write_timeout_s=1000)
    async with (
        running_daemon(n_slots=400, n_batch=400, n_ctx=16, limits=limits) as daemon,
        raw_client(daemon) as holder,
        raw_client(daemon) as other,
    ):
        half = (2**30).to_bytes(4) + b"x" * 2 * SMALL_BYTES
        await holder.send(*(Subscribe(i, 1.0) for i in range(16)), half)
        started_at = anyio.current_time()
        await anyio.sleep(2)  # more statuses than a socket holds have come
        await holder.send(b"x")  # and are what a further byte has to wait for
        await other.send(WRONG)
        assert (await other.receive_a(ProtocolError)).code == "bad_message"
        assert anyio.current_time() - started_at == pytest.approx(10, rel=0.1)


async def test_half_frames_that_fill_the_room_are_waited_for_in_turn_and_cut_nobody_else() -> None:
    n_at_once = ROOM_BYTES // LARGE_BYTES
    half = LARGE_BYTES.to_bytes(4) + b"x" * 2 * SMALL_BYTES
    limits = SessionLimits(max_frame_bytes=LARGE_BYTES, frame_timeout_s=5)
    async with running_daemon(limits=limits) as daemon, AsyncExitStack() as stack:
        other = await stack.enter_async_context(raw_client(daemon))
        started_at = anyio.current_time()
        for _ in range(2 * n_at_once + n_at_once // 2):
            holder = await stack.enter_async_context(raw_client(daemon))
            await holder.send(half)
        await other.send(WRONG)
        assert (await other.receive_a(ProtocolError)).code == "bad_message"
        assert anyio.current_time() - started_at == pytest.approx(2 * 5, rel=0.1)
