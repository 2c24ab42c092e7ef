"""The greeting of a connection, its frames, and what becomes of bad ones."""

import random
import struct

import anyio
import pytest
from msgspec.msgpack import encode

from runnerd.config import SessionLimits
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Failed,
    Finished,
    Generate,
    GetModel,
    Hello,
    ProtocolError,
    Status,
    Subscribe,
    Tokenize,
    Welcome,
)
from tests.daemon import (
    HELLO,
    Daemon,
    raw_client,
    running_daemon,
)
from tests.engines import GatedLoad, SteppedEngine

pytestmark = pytest.mark.anyio

SMALL_FRAMES = SessionLimits(max_frame_bytes=4096)
SHORT = Generate(1, "x", max_tokens=3)


def payload(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def check_is_well(daemon: Daemon) -> None:
    """Assert that a new connection is served as ever."""
    async with raw_client(daemon) as client:
        await client.send(SHORT)
        assert (await client.receive_a(Finished)).n_generated == 3


async def test_requests_may_follow_the_hello_at_once() -> None:
    async with running_daemon() as daemon, raw_client(daemon, greets=False) as client:
        await client.send(HELLO, SHORT)
        assert isinstance(await client.receive(), Welcome)
        assert (await client.receive_a(Finished)).reason == "length"


@pytest.mark.parametrize(
    "data",
    [
        encode_frame(SHORT),
        encode_frame(Hello(7, 9)),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"\0\0\0\0",
        payload(b"\xc0"),
        payload(encode(["hello"])),
    ],
)
async def test_anything_but_a_good_hello_first_is_fatal(data: bytes) -> None:
    async with running_daemon() as daemon, raw_client(daemon, greets=False) as client:
        await client.send(data)
        (error,) = await client.rest()
        assert isinstance(error, ProtocolError)
        assert error.fatal
        await check_is_well(daemon)


@pytest.mark.parametrize("length", [4097, 2**31, 2**32 - 1])
async def test_a_giant_frame_is_refused_when_its_length_is_read(length: int) -> None:
    async with (
        running_daemon(limits=SMALL_FRAMES) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(struct.pack(">I", length))
        (error,) = await client.rest()
        assert isinstance(error, ProtocolError)
        assert error.code == "frame_too_large"
        assert error.details == {"declared": length, "limit": 4096}
        await check_is_well(daemon)


async def test_a_frame_of_just_the_limit_is_taken() -> None:
    async with (
        running_daemon(limits=SMALL_FRAMES, n_ctx=8192) as daemon,
        raw_client(daemon) as client,
    ):
        overhead = len(encode_frame(Generate(1, "x" * 4000, max_tokens=1))) - 4000 - 4
        await client.send(Generate(1, "x" * (4096 - overhead), max_tokens=1))
        assert (await client.receive_a(Finished)).n_prompt == 4096 - overhead + 1


async def test_a_fatal_error_comes_after_the_last_answer() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x"), Generate(2, "y"), Subscribe(3))
        await engine.at_step()
        await engine.step(2)
        await client.send(struct.pack(">I", 2**32 - 1))
        await daemon.until(lambda: daemon.runner.n_waiting == 0)
        engine.let_all_go()
        *answers, error = await client.rest()
        assert isinstance(error, ProtocolError)
        assert error.code == "frame_too_large"
        ends = [a.reason for a in answers if isinstance(a, Finished)]
        assert ends == ["cancelled", "cancelled"]
        assert [a.last for a in answers if isinstance(a, Status)][-1]
        await daemon.has_all_slots()


async def test_a_fatal_error_does_not_wait_for_the_model() -> None:
    load = GatedLoad()
    async with running_daemon(load=load, waits_for_load=False) as daemon:
        try:
            async with raw_client(daemon) as client:
                await client.send(Generate(1, "x"), Tokenize(2, "x"), GetModel(3), Subscribe(4))
                await client.send(struct.pack(">I", 2**32 - 1))
                *answers, error = await client.rest()
            assert isinstance(error, ProtocolError)
            assert [a.reason for a in answers if isinstance(a, Finished)] == ["cancelled"]
        finally:
            load.let_go()


async def test_a_full_close_after_a_fatal_error_ends_the_session_amid_a_step() -> None:
    async with running_daemon(load=SteppedEngine) as daemon:
        engine = daemon.engine_as(SteppedEngine)
        async with raw_client(daemon) as client:
            await client.send(Generate(1, "x"))
            await engine.at_step()
            await client.send(struct.pack(">I", 2**32 - 1))
            await daemon.until(
                lambda: any(session._is_closing for session in daemon.server._sessions.values())
            )
            assert daemon.server.n_connections == 1
        await daemon.until(lambda: daemon.server.n_connections == 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xc0",
        encode([]),
        encode({"type": "nonsense"}),
        encode({"type": "accepted", "request_id": 2}),
        encode({"request_id": 2}),
        encode({1: 2}),
        encode(SHORT) + b"\0",
        encode(SHORT)[:-1],
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdc\xff\xff" * 900,
        b"\x91" * 900 + b"\xc0",
        b"\x91" * 1100 + b"\xc0",
        b"\x91" * 100_000,
        b"\xdd\x00\x0f\x42\x40" + b"\x80" * 1_000_000,
        encode_frame(HELLO)[4:],
    ],
)
async def test_a_payload_that_is_no_message_leaves_the_connection_usable(data: bytes) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(payload(data), SHORT)
        refused = await client.receive()
        assert isinstance(refused, Failed | ProtocolError)
        assert refused.code == "bad_message"
        if isinstance(refused, ProtocolError):
            assert not refused.fatal
        assert (await client.receive_a(Finished)).reason == "length"


async def test_random_bytes_in_frames_are_each_refused() -> None:
    draw = random.Random(1)
    frames = [payload(draw.randbytes(draw.randrange(60))) for _ in range(3000)]
    async with running_daemon() as daemon, raw_client(daemon) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send, b"".join(frames))
            for _ in frames:
                assert isinstance(await client.receive(), Failed | ProtocolError)
        await client.send(SHORT)
        assert (await client.receive_a(Finished)).reason == "length"


async def test_a_valid_frame_cut_anywhere_and_closed_harms_nobody() -> None:
    whole = encode_frame(HELLO) + encode_frame(SHORT)
    async with running_daemon() as daemon, raw_client(daemon) as neighbour:
        await neighbour.send(Generate(1, "x", max_tokens=400, shift=True))
        for n_bytes in range(len(whole)):
            async with raw_client(daemon, greets=False) as client:
                await client.send(whole[:n_bytes])
        assert (await neighbour.receive_a(Finished)).n_generated == 400
        await daemon.until(lambda: daemon.server.n_connections == 1)
        await daemon.has_all_slots()
