"""Clients and libraries that do everything wrong, very often: the log stays short."""

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from statistics import median
from time import monotonic

import anyio
import pytest

from runnerd.client import connect
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Detokenize, Generate, Hello, ProtocolError
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.probe import HEAP_SHARE, probed

pytestmark = pytest.mark.anyio

Trouble = Callable[[DaemonProcess, float], Coroutine[object, object, None]]

HELLO = encode_frame(Hello(1, 1))
AT_ONCE = 50  # of what is wrong, in one write
PAUSE_S = 0.05  # so that each is done a thousand times in a second, where the machine can


async def repeat(daemon: DaemonProcess, for_s: float, data: bytes) -> None:
    """Send it on one connection, again and again; read the answers away."""
    end = monotonic() + for_s
    async with await anyio.connect_unix(daemon.path) as stream:
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                try:
                    while True:
                        await stream.receive(2**18)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

            tasks.start_soon(read)
            await stream.send(HELLO)
            while monotonic() < end:
                await stream.send(data)
                await anyio.sleep(PAUSE_S)
            tasks.cancel_scope.cancel()


async def garbage_frames(daemon: DaemonProcess, for_s: float) -> None:
    await repeat(daemon, for_s, b"\0\0\0\5RUNND" * AT_ONCE)


async def complaints(daemon: DaemonProcess, for_s: float) -> None:
    await repeat(daemon, for_s, encode_frame(ProtocolError("oh", "no\n", fatal=False)) * AT_ONCE)


async def invalid_requests(daemon: DaemonProcess, for_s: float) -> None:
    requests = [encode_frame(Detokenize(i, [-1])) for i in range(AT_ONCE)]
    await repeat(daemon, for_s, b"".join(requests))


async def refused_requests(daemon: DaemonProcess, for_s: float) -> None:
    """More than the queue takes, of prompts that are long."""
    requests = [encode_frame(Generate(i, "x" * 1000, n=64)) for i in range(AT_ONCE)]
    await repeat(daemon, for_s, b"".join(requests))


async def disconnects(daemon: DaemonProcess, for_s: float) -> None:
    end = monotonic() + for_s
    request = encode_frame(Generate(1, "x", shift=True))
    while monotonic() < end:
        async with await anyio.connect_unix(daemon.path) as stream:
            await stream.send(HELLO + request)


async def fatal_complaints(daemon: DaemonProcess, for_s: float) -> None:
    end = monotonic() + for_s
    complaint = encode_frame(ProtocolError("oh", "\x1b[31m" + "no" * 2000, fatal=True))
    while monotonic() < end:
        async with await anyio.connect_unix(daemon.path) as stream:
            await stream.send(HELLO + complaint)


async def broken_frames(daemon: DaemonProcess, for_s: float) -> None:
    end = monotonic() + for_s
    while monotonic() < end:
        async with await anyio.connect_unix(daemon.path) as stream:
            await stream.send(HELLO + b"\xff" * 4)


async def native_warnings(daemon: DaemonProcess, for_s: float) -> None:
    """Write what a library would write for each token."""
    end = monotonic() + for_s
    with open(f"/proc/{daemon.process.pid}/fd/2", "wb", buffering=0) as stderr:
        while monotonic() < end:
            stderr.write(b"llama: warning: this token is strange\n" * AT_ONCE)
            await anyio.sleep(PAUSE_S)


TROUBLES: list[Trouble] = [
    garbage_frames,
    complaints,
    invalid_requests,
    refused_requests,
    disconnects,
    fatal_complaints,
    broken_frames,
    native_warnings,
]


class Lines:
    """What a daemon has logged."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.n_bytes = daemon.log_path.stat().st_size
        self.all = [json.loads(line) for line in daemon.log.splitlines()]
        seconds = Counter(str(line["timestamp"])[:19] for line in self.all)
        self.most_in_a_second = max(seconds.values())

    def of(self, event: str) -> list[dict[str, object]]:
        return [line for line in self.all if line["event"] == event]


async def gaps_ms(daemon: DaemonProcess, for_s: float) -> list[float]:
    """Return the gaps between the tokens of a stream."""
    gaps: list[float] = []
    async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
        end, last = monotonic() + for_s, 0.0
        async for _ in stream:
            now = monotonic()
            if last:
                gaps.append((now - last) * 1e3)
            last = now
            if now > end:
                break
    return gaps


async def test_a_flood_of_everything_at_once_leaves_a_short_log() -> None:
    for_s = 1.0
    async with start_daemon_process("layers=0", "--log-format", "json") as daemon:
        async with probed(daemon, memory_share=HEAP_SHARE), anyio.create_task_group() as tasks:
            for trouble in TROUBLES:
                tasks.start_soon(trouble, daemon, for_s)
        lines = Lines(daemon)
        assert lines.most_in_a_second < 200
        assert lines.n_bytes < 1e6 * (for_s + 2) / 60 + 40_000  # a burst, and a trickle
        assert lines.of("log.suppressed")
        assert lines.of("native.suppressed")
        assert len(lines.of("native.line")) < 20 + 8 * 20


async def gaps_amid(daemon: DaemonProcess, trouble: Trouble, for_s: float) -> float:
    """Return the median gap of a stream beside it, in ms."""
    gaps: list[float] = []

    async def listen() -> None:
        gaps.extend(await gaps_ms(daemon, for_s))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trouble, daemon, for_s)
        tasks.start_soon(listen)
    return median(gaps)


@pytest.mark.soak
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda each: each.__name__)
async def test_a_minute_of_one_trouble_is_less_than_a_megabyte_and_the_log_slows_no_stream(
    trouble: Trouble,
) -> None:
    async with start_daemon_process("step_ms=10", "--log-level", "error") as daemon:
        without_log = await gaps_amid(daemon, trouble, 10.0)
    async with start_daemon_process("step_ms=10", "--log-format", "json") as daemon:
        with_log = await gaps_amid(daemon, trouble, 60.0)
        lines = Lines(daemon)
        assert lines.most_in_a_second < 200
        assert lines.n_bytes < 1e6
        assert with_log < 2 * without_log
        await daemon.has_all_slots()
