"""Whole daemons: streams, signals, deaths, exit statuses."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from io import FileIO
from pathlib import Path

import anyio
import psutil
import pytest
from anyio import to_thread
from anyio.abc import UNIXSocketStream

from runnerd.client import ConnectionLost, RequestFailed, attach, connect
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Generate, Hello
from tests.daemon_process import RUNNERD, START_S, start_daemon_process
from tests.e2e.asking import Answer, ask, ask_all
from tests.statuses import is_idle, is_stalled, until_status

pytestmark = pytest.mark.anyio

SLOW = "layers=0,step_ms=2"
N_TOKENS = 24

# A client that can be killed with no regard for anybody: it imports nothing of ours.
DOOMED_CLIENT = """
import socket, signal, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(bytes.fromhex(sys.argv[2]))
sock.recv(1)
print("reading", flush=True)
while sock.recv(100):
    pass
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_daemon_serves_drains_and_leaves_nothing_behind(backend: str) -> None:
    async with (
        start_daemon_process(SLOW, "--async-backend", backend) as daemon,
        connect(daemon.path) as client,
    ):
        done = await client.complete("Once", max_tokens=20, temperature=0.0)
        assert (done.finished.n_generated, len(done.text)) == (20, 20)
        async with client.generate("x", max_tokens=150) as stream:
            await anext(stream)
            daemon.signal(signal.SIGTERM)
            assert (await stream.completion()).finished.n_generated == 150
        assert await daemon.exit_code() == 0
        assert not daemon.path.exists()
        assert [p.name for p in daemon.path.parent.iterdir()] != []
        assert not daemon.path.with_name("socket.lock").exists()
        assert "Traceback" not in daemon.log


async def test_a_client_killed_in_mid_stream_frees_its_slots() -> None:
    frames = encode_frame(Hello(1, 1)) + b"".join(
        encode_frame(Generate(i, "x", shift=True)) for i in range(4)
    )
    async with start_daemon_process("layers=0") as daemon, connect(daemon.path) as client:
        for _ in range(10):
            doomed = subprocess.Popen(
                [sys.executable, "-S", "-c", DOOMED_CLIENT, str(daemon.path), frames.hex()],
                stdout=subprocess.PIPE,
            )
            assert doomed.stdout is not None
            with doomed.stdout:
                assert await to_thread.run_sync(doomed.stdout.readline) == b"reading\n"
            doomed.kill()
            doomed.wait()
            with anyio.fail_after(10):
                await until_status(client, is_idle)
        await daemon.has_all_slots()
        assert "Traceback" not in daemon.log
        assert "library.logged" not in daemon.log


async def test_a_daemon_killed_in_mid_stream_is_no_success() -> None:
    async with start_daemon_process("layers=0") as daemon, connect(daemon.path) as client:
        async with client.generate("x", shift=True) as stream:
            await anext(stream)
            daemon.signal(signal.SIGKILL)
            with pytest.raises(ConnectionLost):
                async for _ in stream:
                    pass
            assert stream.finished is None


# A shell, and a daemon in the foreground of its terminal; whoever runs us may ignore hang-ups.
SESSION = """
import fcntl, os, signal, subprocess, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
sys.exit(subprocess.call(sys.argv[1:], start_new_session=False))
"""


async def test_a_terminal_that_closes_ends_it_in_good_order(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    ours, theirs = os.openpty()
    serve = [*RUNNERD, "serve", SLOW, "--engine=reference", f"--socket={path}"]
    shell = subprocess.Popen([sys.executable, "-c", SESSION, *serve], stderr=theirs)
    os.close(theirs)
    with closing(FileIO(ours)) as terminal, anyio.fail_after(START_S):
        seen = b""
        while b"daemon.ready" not in seen:
            seen += await to_thread.run_sync(terminal.read, 2**16)
        (daemon,) = psutil.Process(shell.pid).children()
        async with connect(path) as client, client.generate("x", max_tokens=300) as stream:
            await anext(stream)
            terminal.close()
            daemon.send_signal(signal.SIGHUP)  # as many shells do besides
            assert (await stream.completion()).finished.n_generated == 300
        await to_thread.run_sync(shell.wait)
        await to_thread.run_sync(daemon.wait)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once_though_a_step_hangs(first: signal.Signals) -> None:
    options = ("--step-timeout", "0.2")
    async with (
        start_daemon_process("layers=0,hang_at=5", *options) as daemon,
        connect(daemon.path) as client,
    ):
        async with client.generate("x", shift=True) as stream:
            await anext(stream)
            with anyio.fail_after(20):
                await until_status(client, is_stalled)
                daemon.signal(first)
                with pytest.raises(RequestFailed, match="shutting_down"):
                    while True:
                        await client.complete("y", max_tokens=0)
                daemon.signal(signal.SIGTERM)
                assert await daemon.exit_code(within_s=5) == 70
                with pytest.raises(ConnectionLost):
                    async for _ in stream:
                        pass
        assert not daemon.path.exists()


async def test_a_hundred_signals_are_no_more_than_two() -> None:
    async with start_daemon_process(SLOW) as daemon, connect(daemon.path) as client:
        async with client.generate("x", shift=True) as stream:
            await anext(stream)
            for _ in range(100):
                if daemon.process.poll() is None:
                    daemon.signal(signal.SIGTERM)
                    await anyio.sleep(0.01)  # or the kernel would make one of all of them
            assert await daemon.exit_code(within_s=5) == 70
        assert "Traceback" not in daemon.log


async def test_a_daemon_ends_with_its_parent_though_a_step_hangs() -> None:
    ours, theirs = socket.socketpair()
    options = ("--step-timeout", "0.2")
    async with start_daemon_process(
        "layers=0,hang_at=5", *options, inherits=theirs, waits_until_ready=False
    ) as daemon:
        async with attach(await UNIXSocketStream.from_socket(ours)) as client:
            async with client.generate("x", shift=True) as stream:
                await anext(stream)
                await until_status(client, is_stalled)
        assert await daemon.exit_code(within_s=10) == 70


async def test_a_daemon_ends_with_its_parent_amid_the_load() -> None:
    ours, theirs = socket.socketpair()
    async with start_daemon_process(
        "layers=0,load_ms=10000", inherits=theirs, waits_until_ready=False
    ) as daemon:
        async with attach(await UNIXSocketStream.from_socket(ours)) as client:
            assert (await client.status()).state == "loading"
        assert await daemon.exit_code(within_s=5) == 0


@pytest.mark.parametrize(
    ("options", "exit_code", "code"),
    [
        ("layers=0,load_ms=1500,fail_load=1", 65, "load_failed"),
        ("layers=0,load_ms=1500,broken_at=2", 70, "engine_failed"),
    ],
)
async def test_whoever_waits_is_told_before_a_failing_daemon_exits(
    options: str, exit_code: int, code: str
) -> None:
    ours, theirs = socket.socketpair()
    async with start_daemon_process(options, inherits=theirs, waits_until_ready=False) as daemon:
        async with attach(await UNIXSocketStream.from_socket(ours)) as client:
            with pytest.raises(RequestFailed, match=code):
                await client.complete("x")
        assert await daemon.exit_code(within_s=5) == exit_code


def alike(alone: Answer, together: Answer, nats: float) -> int:
    """Return how many tokens are the same, up to where two were within `nats` of being chosen."""
    for n_alike, (one, other) in enumerate(zip(alone.logprobs, together.logprobs, strict=True)):
        if abs(one.top[0].logprob - one.top[1].logprob) < nats:
            return n_alike
        assert one.token == other.token, f"token {n_alike}: {one} alone, {other} with others"
    return N_TOKENS


# Without flash attention the last bits of a row depend on what else is in the pass, and so does
# what is all but equally likely.
@pytest.mark.llama
@pytest.mark.parametrize(("flash_attn", "nats"), [("on", 0.0), ("off", 0.1)])
async def test_16_streams_of_a_real_model_equal_each_alone(flash_attn: str, nats: float) -> None:
    subjects = "rain sun snow sea fire stone wood iron bread salt tea glass rope ink wool gold"
    prompts = [f"The story of {subject} begins" for subject in subjects.split()]
    # One thread: two would wait for each other on a machine that has other things to do.
    options = ("--slots=16", "--ctx=256", "--threads=1", f"--flash-attn={flash_attn}")
    wanted = {"max_tokens": N_TOKENS, "temperature": 0.0, "logprobs": 2}
    async with (
        start_daemon_process("smollm2", *options, engine="llama") as daemon,
        connect(daemon.path) as client,
    ):
        together = await ask_all(client, [(prompt, wanted) for prompt in prompts])
        alone = [await ask(client, prompt, **wanted) for prompt in prompts]
    n_alike = [alike(one, other, nats) for one, other in zip(alone, together, strict=True)]
    assert sum(n_alike) >= (N_TOKENS if nats == 0.0 else 4) * len(prompts)
