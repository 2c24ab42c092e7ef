"""Clients that mean no good, against a daemon in a process of its own."""

import random
import resource
import struct
from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.abc import SocketAttribute

from runnerd.client import connect
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Generate, GetStatus, Hello, Subscribe
from tests.daemon_process import DaemonProcess, start_daemon_process

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


async def holdings(daemon: DaemonProcess) -> tuple[int, int, int]:
    """Return its descriptors, threads and memory when we are its only client."""
    async with connect(daemon.path) as client:
        while (await client.status()).n_connections > 1:
            await anyio.sleep(0.01)  # what has just closed is still being taken leave of
        return daemon.facts.num_fds(), daemon.facts.num_threads(), daemon.private_bytes


async def test_ten_thousand_connections_that_come_and_go_leave_nothing_behind() -> None:
    async with start_daemon_process("layers=0", "--log-level", "warning") as daemon:
        await come_and_go(daemon, 1000)
        await daemon.has_all_slots()
        before = await holdings(daemon)
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(come_and_go, daemon, 1000)
        await daemon.has_all_slots()
        after = await holdings(daemon)
        assert after[0] == before[0]
        assert after[1] <= before[1]  # an idle worker thread ends after a while
        assert after[2] < before[2] + 8 * MIB
        assert daemon.log == ""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_without_descriptors_a_daemon_neither_spins_nor_drops_who_is_there(
    backend: str,
) -> None:
    async with (
        start_daemon_process("layers=0", "--async-backend", backend) as daemon,
        connect(daemon.path) as client,
    ):
        n_open = daemon.facts.num_fds()
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (n_open + 10, n_open + 10))
        async with AsyncExitStack() as stack:
            for _ in range(40):
                await stack.enter_async_context(await anyio.connect_unix(daemon.path))
            async with client.subscribe(0.05) as statuses:
                async for status in statuses:
                    if status.n_connections >= 10:
                        break
                started = daemon.facts.cpu_times()
                for _ in range(20):
                    await anext(statuses)
                used = daemon.facts.cpu_times()
            assert used.user + used.system - started.user - started.system < 0.5
            assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3
        with anyio.fail_after(20):
            async with connect(daemon.path) as other:
                assert (await other.complete("x", max_tokens=3)).finished.n_generated == 3
        assert daemon.log.count("server.out_of_descriptors") < 20


async def test_giant_frames_take_no_memory() -> None:
    async with start_daemon_process("layers=0") as daemon, connect(daemon.path) as client:
        before = daemon.private_bytes
        async with AsyncExitStack() as stack:
            for i in range(100):
                stream = await stack.enter_async_context(await anyio.connect_unix(daemon.path))
                length = (2**32 - 1, 2**31, 16 * MIB + 1, 16 * MIB)[i % 4]
                await stream.send(HELLO + struct.pack(">I", length))
            assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3
            assert daemon.private_bytes < before + 32 * MIB
        await daemon.has_all_slots()


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

    async with start_daemon_process("layers=0") as daemon, connect(daemon.path) as client:
        async with client.generate("x", shift=True, max_tokens=5000) as stream:
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(rubbish, daemon)
                done = await stream.completion()
        assert done.finished.n_generated == 5000
        await daemon.has_all_slots()
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

    async with start_daemon_process("layers=0") as daemon, connect(daemon.path) as client:
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
        await daemon.has_all_slots()


async def test_a_reset_while_answers_wait_is_one_line_at_most() -> None:
    async with start_daemon_process("layers=0", "--log-level", "warning") as daemon:
        for _ in range(200):
            async with await anyio.connect_unix(daemon.path) as stream:
                await stream.send(HELLO + encode_frame(Generate(1, "x", shift=True)))
                await anyio.wait_readable(stream.extra(SocketAttribute.raw_socket))
        await daemon.has_all_slots()
        assert daemon.log == ""
