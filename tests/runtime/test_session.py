"""One connection: what it survives, what ends it, and what it never does to the others."""

import os
import resource
import socket
import struct
from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.abc import SocketAttribute
from structlog.testing import capture_logs

from runnerd.client import connect
from runnerd.config import SessionLimits
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    GetStatus,
    ProtocolError,
    Status,
    Subscribe,
    Tokenize,
    Tokens,
)
from tests.daemon import (
    HELLO,
    PATIENCE_S,
    Daemon,
    RawClient,
    raw_client,
    running_daemon,
    started,
)
from tests.engines import SteppedEngine

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


async def with_a_small_buffer(daemon: Daemon, client: RawClient) -> None:
    """Shrink what the kernel holds of the daemon's answers to all clients."""
    await client.send(GetStatus(99))
    await client.receive_a(Status)
    for session in daemon.server._sessions.values():
        sock = session._stream.extra(SocketAttribute.raw_socket)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


# --- half-close ---------------------------------------------------------------------------------


async def test_after_a_half_close_requests_run_to_their_end_and_the_daemon_closes() -> None:
    async with running_daemon(n_slots=1) as daemon, raw_client(daemon) as client:
        await client.send(
            Generate(1, "x", max_tokens=30), Generate(2, "y", max_tokens=5), Subscribe(3)
        )
        client.shut_down_sending()
        answers = await client.rest()
        assert [a.n_generated for a in answers if isinstance(a, Finished)] == [30, 5]
        assert [a.last for a in answers if isinstance(a, Status)][-1]
        await daemon.has_all_slots()


async def test_a_half_close_amid_a_frame_is_told_after_the_last_answer() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "x", max_tokens=30), b"\0\0\0\x09half")
        client.shut_down_sending()
        *answers, error = await client.rest()
        assert [a.n_generated for a in answers if isinstance(a, Finished)] == [30]
        assert isinstance(error, ProtocolError)
        assert error.code == "frame_incomplete"


async def test_a_half_close_with_nothing_to_do_closes() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        client.shut_down_sending()
        assert await client.rest() == []


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_full_close_after_a_half_close_frees_the_slot(is_running: bool) -> None:
    """Also where nothing would be written that could fail: no text comes of it."""
    async with running_daemon(load=SteppedEngine, n_slots=1, n_batch=8) as daemon:
        engine = daemon.engine_as(SteppedEngine)
        async with raw_client(daemon) as other:
            if not is_running:
                await other.send(Generate(1, "z", max_tokens=1))
                await engine.at_step()
            async with raw_client(daemon) as client:
                await client.send(Generate(1, "x" * 300))
                await daemon.until(lambda: daemon.runner.figures.n_requests == 1 + (not is_running))
                client.shut_down_sending()
                await daemon.until(
                    lambda: any(session._is_closing for session in daemon.server._sessions.values())
                )
            await daemon.until(lambda: daemon.server.n_connections == 1)
            engine.let_all_go()
            await daemon.has_all_slots()
            assert daemon.runner.batcher is not None
            assert daemon.runner.batcher.n_prefilled < 600


async def test_a_half_close_without_a_descriptor_to_spare_is_one_like_any_other() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "x", max_tokens=1))
        await client.receive_a(Finished)
        n_descriptors = os.dup(0)  # the lowest that is free
        os.close(n_descriptors)
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_descriptors, hard))
        try:
            await client.send(Generate(1, "x", max_tokens=30))
            client.shut_down_sending()
            answers = await client.rest()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [a.n_generated for a in answers if isinstance(a, Finished)] == [30]


# --- slow readers -------------------------------------------------------------------------------


async def test_a_slow_reader_pauses_its_own_sequences_and_loses_nothing() -> None:
    limits = SessionLimits(outbox_bytes=512)
    n_tokens = 3_000
    async with (
        running_daemon(limits=limits, n_slots=2) as daemon,
        raw_client(daemon) as slow,
        raw_client(daemon) as quick,
    ):
        await with_a_small_buffer(daemon, slow)
        await slow.send(Generate(1, "x", max_tokens=n_tokens, shift=True, return_tokens=True))
        batcher = daemon.runner.batcher
        assert batcher is not None
        await daemon.until(lambda: any(s.paused for s in batcher.residency.running))
        n_steps = daemon.runner.figures.n_steps
        await quick.send(Generate(1, "y", max_tokens=50))
        assert (await quick.receive_a(Finished)).n_generated == 50
        assert daemon.runner.figures.n_steps >= n_steps + 50
        assert batcher.residency.running[0].n_generated < n_tokens
        tokens, text = 0, ""
        while not isinstance(message := await slow.receive(), Finished):
            if isinstance(message, Delta):
                tokens += len(message.tokens)
                text += message.text
        assert tokens == message.n_generated == n_tokens
        assert len(text.encode()) == message.n_text_bytes
        await daemon.has_all_slots()


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    limits = SessionLimits(outbox_bytes=512, write_timeout_s=0.2)
    async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
        await with_a_small_buffer(daemon, client)
        await client.send(Generate(1, "x", shift=True, return_tokens=True))
        await daemon.until(lambda: daemon.server.n_connections == 0)
        await daemon.has_all_slots()


async def test_whoever_asks_and_asks_without_reading_is_not_read_either() -> None:
    limits = SessionLimits(write_timeout_s=0.3)
    async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
        n_sent = 0
        chunk = b"".join(encode_frame(GetStatus(i)) for i in range(1000))
        with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
            while True:
                await client.send(chunk)
                n_sent += 1000
        assert n_sent < 50_000
        await check_is_well(daemon)


async def test_a_paused_sequence_can_be_cancelled() -> None:
    limits = SessionLimits(outbox_bytes=512)
    async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
        await with_a_small_buffer(daemon, client)
        await client.send(Generate(1, "x", shift=True, return_tokens=True))
        batcher = daemon.runner.batcher
        assert batcher is not None
        await daemon.until(lambda: any(s.paused for s in batcher.residency.running))
        await client.send(Cancel(1))
        assert (await client.receive_a(Finished)).reason == "cancelled"
        await daemon.has_all_slots()


# --- the others ---------------------------------------------------------------------------------


async def test_a_reset_at_any_moment_leaves_streams_alone() -> None:
    moments: list[list[bytes]] = [
        [],
        [encode_frame(HELLO)],
        [encode_frame(HELLO), b"\0\0"],
        [encode_frame(HELLO), encode_frame(SHORT)[:9]],
        [encode_frame(HELLO), encode_frame(Generate(1, "x", shift=True))],
        [encode_frame(HELLO), encode_frame(Subscribe(1, 0.05))],
        [encode_frame(HELLO), encode_frame(Generate(1, "x", temperature=1000.0))],
        [encode_frame(HELLO), payload(b"\xc1")],
        [struct.pack(">I", 2**32 - 1)],
        [encode_frame(HELLO), *(encode_frame(Generate(i, "x")) for i in range(20))],
    ]
    async with running_daemon(n_slots=2) as daemon, raw_client(daemon) as neighbour:
        await neighbour.send(Generate(1, "x", max_tokens=1500, shift=True))
        await neighbour.receive_a(Delta)
        for i in range(60):
            async with raw_client(daemon, greets=False) as client:
                await client.send(*moments[i % len(moments)])
                if i % 20 >= 10 and i % 10:  # with an answer unread, closing is a reset
                    with anyio.move_on_after(0.05):
                        await anyio.wait_readable(client.socket)
        assert (await neighbour.receive_a(Finished)).n_generated == 1500
        await daemon.until(lambda: daemon.server.n_connections == 1)
        await daemon.has_all_slots()


async def test_an_answer_too_large_for_a_frame_fails_its_request_only() -> None:
    async with (
        running_daemon(limits=SMALL_FRAMES) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Tokenize(1, "\xff" * 1500))  # each is two tokens of three bytes
        assert (await client.receive_a(Failed)).code == "answer_too_large"
        await client.send(Tokenize(1, "ok"))
        assert len((await client.receive_a(Tokens)).tokens) == 3


async def test_a_client_may_complain_and_leave() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(
            Generate(1, "x", shift=True), ProtocolError("internal", "oh", fatal=False)
        )
        await client.receive_a(Delta)
        await client.send(ProtocolError("internal", "that is too much"))
        await client.rest()
        await daemon.until(lambda: daemon.server.n_connections == 0)
        await daemon.has_all_slots()


async def test_a_client_that_complains_on_and_on_gets_two_lines_of_the_log() -> None:
    with capture_logs() as lines:
        async with running_daemon() as daemon:
            async with raw_client(daemon) as client:
                await client.send(*(ProtocolError("internal", "oh", fatal=False),) * 1000)
                await client.send(GetStatus(1))
                await client.receive_a(Status)
            await daemon.until(lambda: daemon.server.n_connections == 0)
    events = [(line["event"], line.get("n_more")) for line in lines]
    assert [event for event in events if event[0].startswith("client.")] == [
        ("client.complained", None),
        ("client.kept_complaining", 999),
    ]


async def test_many_streams_on_one_connection_share_it() -> None:
    async with (
        running_daemon(n_slots=8) as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        with anyio.fail_after(PATIENCE_S):
            streams = await started(client, stack, 8)
            for _ in range(3):
                for stream in streams:
                    await anext(stream)
