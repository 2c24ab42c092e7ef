"""Time limits of a session, on a clock that jumps: trio's, for want of one on asyncio."""

import socket

import anyio
import pytest
from anyio.abc import SocketAttribute
from trio.testing import MockClock

from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Detokenize, Finished, Generate, ProtocolError
from tests.daemon import HELLO, raw_client, running_daemon

pytestmark = pytest.mark.anyio


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
