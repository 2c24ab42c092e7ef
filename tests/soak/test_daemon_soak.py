"""A daemon in a process of its own, and a crowd that asks for everything and leaves anyhow."""

from collections import Counter
from pathlib import Path
from random import Random
from socket import SO_LINGER, SOL_SOCKET
from struct import pack

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketAttribute

from runnerd.client import Client, ConnectionLost, RequestFailed, connect
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Adapter, Cancel, Generate, Hello, Part, TextPart
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.e2e.asking import loosely
from tests.soak.asks import IMAGES, LITERALS, SAMPLING, STOPS, WORDS
from tests.statuses import is_ours_alone, until_status

pytestmark = pytest.mark.anyio

N_CLIENTS = 24
N_TURNS = 25  # of each client
PATIENCE_S = 120.0
MIB = 2**20
MODEL = "layers=1,dim=16,heads=2,nan_seq=40"
SIZES = (
    "--slots=6",
    "--ctx=128",
    "--ctx-total=300",
    "--batch=64",
    "--max-queue=40",
    "--lora=verse=-",
)


class Visitor:
    """One client that draws what to ask and how to leave; `counts` says what came of it."""

    def __init__(self, path: Path, number: int, counts: Counter[str]) -> None:
        self._path = path
        self._rng = Random(number)
        self._counts = counts

    async def run(self) -> None:
        """Ask again and again, over connections that last for some of the questions."""
        n_left = N_TURNS
        while n_left > 0:
            n_here = min(n_left, self._rng.randint(1, 8))
            n_left -= n_here
            if self._rng.random() < 0.2:
                await self._leave_rudely()
                continue
            async with connect(self._path) as client:
                for _ in range(n_here):
                    await self._ask(client)

    async def _ask(self, client: Client) -> None:
        rng, counts = self._rng, self._counts
        prompt, options, literal = self._draw()
        n_most = rng.choice([None, None, None, 1, 3])
        text, n_deltas = "", 0
        try:
            async with client.generate(prompt, **loosely(options)) as stream:
                async for delta in stream:
                    text += delta.text if delta.index == 0 else ""
                    n_deltas += 1
                    if n_deltas == n_most:
                        counts["left early"] += 1
                        return
            assert stream.finished is not None
            counts[stream.finished.reason] += 1
            if literal is not None and stream.finished.reason == "stop":
                assert text == literal
        except RequestFailed as err:
            counts[err.failed.code] += 1

    async def _leave_rudely(self) -> None:
        """Ask without the client library; read little, or nothing; and be gone."""
        rng = self._rng
        frames = encode_frame(Hello(1, 1)) + b"".join(
            encode_frame(Generate(i, "x" * rng.randrange(60), shift=True)) for i in range(3)
        )
        async with await anyio.connect_unix(self._path) as stream:
            raw = stream.extra(SocketAttribute.raw_socket)
            await stream.send(frames[: rng.choice([len(frames), len(frames) - 9])])
            how = rng.randrange(4)
            if how == 0:
                raw.setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
            elif how == 1:
                for _ in range(5):
                    await stream.receive(7)  # drop by drop
            elif how == 2:
                await stream.receive()
                await stream.send_eof()
                await stream.receive()
            else:
                await stream.receive()
                await stream.send(encode_frame(Cancel(1)))
        self._counts["rude"] += 1

    def _draw(self) -> tuple[list[Part], dict[str, object], str | None]:
        rng = self._rng
        words = "".join(rng.choice(WORDS) for _ in range(rng.choice((1, 5, 12, 40))))
        image = rng.choice(IMAGES) if rng.random() < 0.1 else ""
        prompt: list[Part] = [TextPart(f"<|im_start|>{image}", special=True), TextPart(words)]
        literal = rng.choice(LITERALS) if rng.random() < 0.2 else None
        options: dict[str, object] = {
            name: rng.choice(values[1:])
            for name, values in SAMPLING.items()
            if rng.random() < 0.15 and not name.startswith(("n_", "logit"))
        }
        options |= {
            "max_tokens": rng.choice((0, 1, 8, 8, 40, 150)),
            "shift": rng.random() < 0.5,
            "truncate": rng.random() < 0.7,
            "logprobs": rng.choice((None, None, 0, 3)),
            "priority": rng.choice(("normal", "high", "low")),
            "n": rng.choice((1, 1, 1, 1, 3)),
            "return_progress": rng.random() < 0.3,
            "stop": rng.sample(STOPS, 2) if literal is None and rng.random() < 0.3 else [],
            "cache_scope": rng.choice(("", "other")),
            "adapters": rng.choice(([], [], [Adapter("verse", 0.5)])),
        }
        if rng.random() < 0.1:
            options["timeout_s"] = rng.choice((0.01, 0.5))
        if rng.random() < 0.05:
            options["queue_timeout_s"] = 0.01
        if literal is not None:
            options |= {"grammar": f'root ::= "{literal}"', "ignore_end": False, "n": 1}
        elif rng.random() < 0.03:
            options["grammar"] = "root ::= ("
        return prompt, options, literal


def holdings(daemon: DaemonProcess) -> tuple[int, int]:
    return daemon.facts.num_fds(), daemon.private_bytes


async def test_a_crowd_that_asks_for_everything_leaves_a_daemon_as_it_was() -> None:
    counts: Counter[str] = Counter()
    async with start_daemon_process(MODEL, *SIZES, "--log-level", "warning") as daemon:
        async with connect(daemon.path) as client:
            wanted = (await client.complete("Once", max_tokens=16, temperature=0.0)).text
        await daemon.has_all_slots()
        n_fds, n_bytes = await to_thread.run_sync(holdings, daemon)
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for number in range(N_CLIENTS):
                    tasks.start_soon(Visitor(daemon.path, number, counts).run)
        async with connect(daemon.path) as client:
            await until_status(client, is_ours_alone)
            assert (await client.complete("Once", max_tokens=16, temperature=0.0)).text == wanted
        await daemon.has_all_slots()
        after = await to_thread.run_sync(holdings, daemon)
        assert after[0] <= n_fds + 2
        assert after[1] < n_bytes + 32 * MIB
        assert daemon.process.poll() is None
        assert "Traceback" not in daemon.log
        others = [line for line in daemon.log.splitlines() if "request.failed" not in line]
        assert len(others) < 20
    happened = {"stop", "length", "context", "left early", "rude", "bad_grammar"}
    assert happened <= set(counts), counts
    assert "internal" not in counts


async def test_a_daemon_killed_amid_a_crowd_is_no_success_for_anybody() -> None:
    n_lost, n_done = 0, 0

    async def ask(path: Path, number: int) -> None:
        nonlocal n_lost, n_done
        try:
            async with connect(path) as client:
                await client.complete(f"{number}", shift=True)
        except ConnectionLost:
            n_lost += 1
        else:
            n_done += 1

    async with start_daemon_process(MODEL, *SIZES) as daemon:
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(ask, daemon.path, number)
            async with connect(daemon.path) as client:
                await until_status(
                    client, lambda status: status.n_slots_free == 0 and status.n_waiting > 20
                )
            daemon.process.kill()
    assert (n_lost, n_done) == (30, 0)
