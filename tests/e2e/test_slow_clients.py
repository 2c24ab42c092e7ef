"""Clients that are slow, half gone, or killed, against a daemon in a process of its own."""

import os
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import UNIXSocketStream

from runnerd.client import connect
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Generate, Hello
from tests.daemon_process import start_daemon_process
from tests.e2e.asking import longest_gap_s
from tests.probe import HEAP_SHARE, probed
from tests.statuses import until_status

pytestmark = pytest.mark.anyio

HELLO = encode_frame(Hello(1, 1))
ENDLESS = Generate(1, "x", shift=True, return_tokens=True, logprobs=5)
PATIENCE_S = 20.0
HEAP_SHARE_OF_500 = 0.5  # for so many sessions at once


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_who_stops_reading_delays_nobody_and_is_cut_off(backend: str) -> None:
    options = ("--write-timeout", "0.5", "--async-backend", backend)
    async with (
        start_daemon_process("layers=0", *options) as daemon,
        probed(daemon, memory_share=HEAP_SHARE),
    ):
        async with AsyncExitStack() as stack:
            deaf = await stack.enter_async_context(await anyio.connect_unix(daemon.path))
            await deaf.send(HELLO + encode_frame(ENDLESS))
            client = await stack.enter_async_context(connect(daemon.path))
            stream = await stack.enter_async_context(
                client.generate("y", shift=True, max_tokens=500)
            )
            assert await longest_gap_s(stream) < 0.5
            with anyio.fail_after(PATIENCE_S):
                await until_status(client, lambda status: status.n_connections == 1)
        assert "session.slow_reader" in daemon.log


async def test_waiting_for_answers_after_a_half_close_costs_no_processor_time() -> None:
    async with start_daemon_process("layers=0,step_ms=1000", "--slots", "1") as daemon:
        async with AsyncExitStack() as stack, connect(daemon.path) as client:
            for _ in range(20):  # one runs, the others wait in the queue
                half = await stack.enter_async_context(await anyio.connect_unix(daemon.path))
                await half.send(HELLO + encode_frame(ENDLESS))
                await half.send_eof()
            await until_status(client, lambda status: status.n_waiting == 19)
            before_s = daemon.cpu_s
            await anyio.sleep(1)  # the time that is measured
            assert daemon.cpu_s - before_s < 0.3
            assert (await client.status()).n_connections == 21
        async with connect(daemon.path) as client:
            with anyio.fail_after(PATIENCE_S):  # they have gone, though nothing is read of them
                await until_status(
                    client, lambda status: status.n_connections == 1 and not status.n_waiting
                )


def ask_and_be_killed(path: Path, n_read: int) -> None:
    """Be a client in a process of its own that is killed when it has read so much."""
    child = os.fork()
    if not child:
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
                sock.sendall(HELLO + encode_frame(ENDLESS))
                if n_read:
                    sock.recv(n_read)
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("n_times", [21, pytest.param(1000, marks=pytest.mark.soak)])
async def test_clients_that_are_killed_leave_streams_alone(n_times: int) -> None:
    async with (
        start_daemon_process("layers=0", "--log-level", "warning") as daemon,
        probed(daemon, memory_share=HEAP_SHARE),
    ):
        async with connect(daemon.path) as client:
            async with client.generate("y", shift=True, max_tokens=50 * n_times) as stream:
                async with anyio.create_task_group() as tasks:

                    async def kill_many() -> None:
                        for i in range(n_times):
                            ask_and_be_killed(daemon.path, (0, 10, 1000)[i % 3])
                            await anyio.lowlevel.checkpoint()

                    tasks.start_soon(kill_many)
                    done = await stream.completion()
            assert done.finished.reason == "length"
        assert daemon.log == ""


@pytest.mark.soak
async def test_five_hundred_dawdlers_are_gone_in_time_and_delay_nobody() -> None:
    """A third says nothing, a third a byte of a length, a third the length and then bytes."""
    options = ("--max-connections", "600", "--handshake-timeout", "4", "--frame-timeout", "8")
    whole = encode_frame(Generate(1, "x" * 2**20))
    closed_after_s: list[float] = []

    async def dawdle(stream: UNIXSocketStream, kind: int) -> None:
        began_at = anyio.current_time()
        async with stream, anyio.create_task_group() as tasks:
            if kind:
                await stream.send(HELLO + whole[: 1 if kind == 1 else 4])
            tasks.start_soon(trickle, stream, whole[1 if kind == 1 else 4 :], (0, 5, 1)[kind])
            while True:
                try:
                    await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    break
            closed_after_s.append((anyio.current_time() - began_at) / (4, 8, 8)[kind])
            tasks.cancel_scope.cancel()

    async def trickle(stream: UNIXSocketStream, data: bytes, interval_s: float) -> None:
        if not interval_s:
            return
        for byte in data:
            await anyio.sleep(interval_s)
            try:
                await stream.send(bytes([byte]))
            except anyio.BrokenResourceError:
                return

    async with (
        start_daemon_process("layers=0", *options) as daemon,
        probed(daemon, memory_share=HEAP_SHARE_OF_500),
    ):
        async with anyio.create_task_group() as tasks:
            for i in range(500):
                tasks.start_soon(dawdle, await anyio.connect_unix(daemon.path), i % 3)
            for _ in range(10):
                async with connect(daemon.path) as client:
                    with anyio.fail_after(1):
                        await client.complete("x", max_tokens=3)
                await anyio.sleep(1)  # while they dawdle
        assert len(closed_after_s) == 500
        assert all(0.8 < share < 1.4 for share in closed_after_s), sorted(closed_after_s)[::50]
