"""Clients that mean no good, against a daemon in a process of its own."""

import random
import resource
import socket
import struct
from contextlib import AsyncExitStack, suppress

import anyio
import pytest
from anyio.abc import SocketAttribute, UNIXSocketStream

from runnerd.client import connect
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Generate, GetStatus, Hello, Subscribe
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.probe import HEAP_SHARE, anonymous_bytes, probed
from tests.statuses import until_status

pytestmark = pytest.mark.anyio

HELLO = encode_frame(Hello(1, 1))
MIB = 2**20


async def come_and_go(daemon: DaemonProcess, n_times: int) -> None:
    request = HELLO + encode_frame(Generate(1, "x", shift=True))
    for i in range(n_times):
        async with await anyio.connect_unix(daemon.path) as stream:
            if i % 4:
                await stream.send((HELLO, request, request[:20])[i % 3])
            if i % 5 == 0 and i % 4 and i % 3 < 2:
                await stream.receive(10)


@pytest.mark.parametrize("n_times", [600, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_crowds_that_come_and_go_leave_nothing_behind(n_times: int) -> None:
    async with start_daemon_process("layers=0", "--log-level", "warning") as daemon:
        await come_and_go(daemon, 300)
        async with probed(daemon, memory_share=HEAP_SHARE):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(come_and_go, daemon, n_times // 10)
        assert daemon.log == ""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_without_descriptors_a_daemon_neither_spins_nor_drops_who_is_there(
    backend: str,
) -> None:
    async with (
        start_daemon_process("layers=0", "--async-backend", backend) as daemon,
        probed(daemon, memory_share=HEAP_SHARE),
        connect(daemon.path) as client,
    ):
        n_open = daemon.facts.num_fds()
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (n_open + 10, n_open + 10))
        async with AsyncExitStack() as stack:
            for _ in range(40):
                await stack.enter_async_context(await anyio.connect_unix(daemon.path))
            await until_status(client, lambda status: status.n_connections >= 10)
            before_s = daemon.cpu_s
            async with client.subscribe(0.05) as statuses:
                for _ in range(20):
                    await anext(statuses)
            assert daemon.cpu_s - before_s < 0.5
            assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3
        with anyio.fail_after(20):
            async with connect(daemon.path) as other:
                assert (await other.complete("x", max_tokens=3)).finished.n_generated == 3
        assert daemon.log.count("server.out_of_descriptors") < 20


async def test_giant_frames_take_no_memory() -> None:
    async with (
        start_daemon_process("layers=0") as daemon,
        probed(daemon, memory_share=HEAP_SHARE),
        connect(daemon.path) as client,
    ):
        before = daemon.private_bytes
        async with AsyncExitStack() as stack:
            for i in range(100):
                stream = await stack.enter_async_context(await anyio.connect_unix(daemon.path))
                length = (2**32 - 1, 2**31, 16 * MIB + 1, 16 * MIB)[i % 4]
                await stream.send(HELLO + struct.pack(">I", length))
            assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3
            assert daemon.private_bytes < before + 32 * MIB


async def test_streams_go_on_amid_garbage_and_the_log_stays_short() -> None:
    draw = random.Random(7)

    async def rubbish(daemon: DaemonProcess) -> None:
        for i in range(60):
            async with await anyio.connect_unix(daemon.path) as stream:
                data = b"".join(
                    len(part).to_bytes(4, "big") + part
                    for part in (draw.randbytes(draw.randrange(40)) for _ in range(200))
                )
                with anyio.move_on_after(5):
                    try:
                        await stream.send(HELLO * (i % 2) + data)
                        while await stream.receive():
                            if i % 3 == 0:
                                break
                            if i % 2:
                                await stream.send_eof()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        continue

    async with start_daemon_process("layers=0") as daemon:
        async with probed(daemon, memory_share=HEAP_SHARE), connect(daemon.path) as client:
            async with client.generate("x", shift=True, max_tokens=2000) as stream:
                async with anyio.create_task_group() as tasks:
                    for _ in range(4):
                        tasks.start_soon(rubbish, daemon)
                    done = await stream.completion()
            assert done.finished.n_generated == 2000
        assert len(daemon.log.splitlines()) < 400
        assert "Traceback" not in daemon.log
        assert "library.logged" not in daemon.log


async def test_a_flood_of_questions_keeps_nobody_waiting_nor_fills_the_memory() -> None:
    flood = b"".join(encode_frame(GetStatus(i)) for i in range(20_000))

    async def ask(daemon: DaemonProcess) -> None:
        async with await anyio.connect_unix(daemon.path) as stream:
            await stream.send(HELLO + encode_frame(Subscribe(2**40, 0.05)))
            with anyio.move_on_after(3):  # reads nothing
                while True:
                    await stream.send(flood)

    async with (
        start_daemon_process("layers=0") as daemon,
        probed(daemon, memory_share=HEAP_SHARE),
        connect(daemon.path) as client,
    ):
        await client.complete("x", max_tokens=3)
        before = daemon.private_bytes
        slowest_s = 0.0
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask, daemon)
            for _ in range(20):
                started_at = anyio.current_time()
                await client.complete("x", max_tokens=3)
                slowest_s = max(slowest_s, anyio.current_time() - started_at)
        assert slowest_s < 2.0
        assert daemon.private_bytes < before + 64 * MIB


async def test_a_reset_while_answers_wait_is_one_line_at_most() -> None:
    async with start_daemon_process("layers=0", "--log-level", "warning") as daemon:
        async with probed(daemon, memory_share=HEAP_SHARE):
            for _ in range(200):
                async with await anyio.connect_unix(daemon.path) as stream:
                    await stream.send(HELLO + encode_frame(Generate(1, "x", shift=True)))
                    await anyio.wait_readable(stream.extra(SocketAttribute.raw_socket))
        assert daemon.log == ""


async def test_half_sent_frames_are_bounded_in_all_and_delay_nobody() -> None:
    half = struct.pack(">I", 16 * MIB) + bytes(16 * MIB - 1)
    slowest_s = 0.0

    async def send_half(daemon: DaemonProcess, done: anyio.Event) -> None:
        async with await anyio.connect_unix(daemon.path) as stream:
            await stream.send(HELLO)
            with anyio.move_on_after(60) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stream.send, half)
                    await done.wait()
                    tasks.cancel_scope.cancel()
            assert not scope.cancelled_caught

    async with (
        start_daemon_process("layers=0") as daemon,
        probed(daemon, memory_share=HEAP_SHARE) as before,
    ):
        done = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(24):
                tasks.start_soon(send_half, daemon, done)
            highest = n_same = 0
            while n_same < 5:  # until no more is taken in
                asked_at = anyio.current_time()
                async with connect(daemon.path) as client:
                    await client.complete("x", max_tokens=3)
                slowest_s = max(slowest_s, anyio.current_time() - asked_at)
                n_bytes = anonymous_bytes(daemon.process.pid)
                n_same = n_same + 1 if n_bytes <= highest else 0
                highest = max(highest, n_bytes)
                await anyio.sleep(0.05)  # between two looks at its memory
            done.set()
        assert 100 * MIB < highest - before.private_bytes < (256 + 32) * MIB
        assert slowest_s < 1.0


async def test_what_a_socket_can_carry_besides_bytes_is_of_no_effect() -> None:
    ask = encode_frame(Generate(1, "x", max_tokens=3))
    async with start_daemon_process("layers=0") as daemon, probed(daemon):
        async with await anyio.connect_unix(daemon.path) as stream, connect(daemon.path) as client:
            n_open = daemon.facts.num_fds()
            sock = stream.extra(SocketAttribute.raw_socket)
            with open(__file__) as ours:
                socket.send_fds(sock, [HELLO], [ours.fileno()] * 100)
                socket.send_fds(sock, [ask], [ours.fileno()] * 100)
            assert b"finished" in await until(stream, b"finished")
            await client.status()
            assert daemon.facts.num_fds() == n_open
            with suppress(OSError):  # not every kernel has it
                sock.send(b"!", socket.MSG_OOB)
            before_s = daemon.cpu_s
            await anyio.sleep(0.5)  # the time that is measured
            assert daemon.cpu_s - before_s < 0.2


async def test_who_stops_taking_but_goes_on_asking_is_let_go() -> None:
    async with start_daemon_process("layers=0") as daemon, probed(daemon, memory_share=HEAP_SHARE):
        async with await anyio.connect_unix(daemon.path) as stream:
            await stream.send(HELLO + encode_frame(Generate(1, "x", shift=True)))
            await until(stream, b"delta")
            stream.extra(SocketAttribute.raw_socket).shutdown(socket.SHUT_RD)
            with anyio.fail_after(20), pytest.raises(anyio.BrokenResourceError):
                for i in range(10**9):
                    await stream.send(encode_frame(GetStatus(i)))


async def until(stream: UNIXSocketStream, sign: bytes) -> bytes:
    """Read until a sign has come; return all."""
    data = b""
    with anyio.fail_after(20):
        while sign not in data:
            data += await stream.receive()
    return data
