"""A daemon that runs a real model says how it is, soon, whatever it does meanwhile."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from socket import socketpair
from time import perf_counter

import anyio
import pytest
from anyio.abc import UNIXSocketStream
from anyio.from_thread import start_blocking_portal

pytest.importorskip("llama_cpp")

from loadtest.projector import HEAVY, make_projector
from runnerd.client import Client, attach, connect
from runnerd_protocol.messages import SlotState, Status
from tests.daemon import PATIENCE_S
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.e2e.asking import GREEDY, ask, ask_all
from tests.e2e.seeing import parts, plain
from tests.engine.llama_builders import MODEL

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

SOON_S = 1.0  # what takes milliseconds on a machine of one's own may take longer on a shared one
PACE_S = 0.02  # between questions, so that the daemon has time for its work
N_STREAMS = 64
N_LONG = 600  # tokens at least, of a prompt that takes several passes
OPTIONS = ("--threads=1", f"--slots={N_STREAMS}", "--ctx=2048", "--ctx-total=4096", "--batch=256")


@pytest.fixture(scope="module")
def busy() -> Iterator[DaemonProcess]:
    """A daemon with a slot for each of many streams."""
    with start_blocking_portal() as portal:
        daemon = start_daemon_process("smollm2", *OPTIONS, engine="llama")
        with portal.wrap_async_context_manager(daemon) as process:
            yield process


async def soon(client: Client) -> Status:
    """Ask how the daemon is; the answer comes soon."""
    asked_at = perf_counter()
    status = await client.status()
    assert perf_counter() - asked_at < SOON_S
    return status


async def meanwhile(
    daemon: DaemonProcess, work: Callable[[Client], Awaitable[object]]
) -> list[Status]:
    """Ask how the daemon is as long as it works; return the answers."""
    answers: list[Status] = []
    async with connect(daemon.path) as client, connect(daemon.path) as watcher:
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while True:
                    answers.append(await soon(watcher))
                    await anyio.sleep(PACE_S)

            tasks.start_soon(watch)
            await work(client)
            tasks.cancel_scope.cancel()
    return answers


def most(answers: list[Status], state: SlotState) -> int:
    """Return in how many slots at most something was in a state at the same time."""
    return max(sum(slot.state == state for slot in status.slots) for status in answers)


async def test_it_answers_while_it_loads() -> None:
    seen: set[str] = set()
    ours, theirs = socketpair()
    daemon = start_daemon_process(
        "smollm2", *OPTIONS, engine="llama", waits_until_ready=False, inherits=theirs
    )
    with anyio.fail_after(3 * PATIENCE_S):
        async with daemon, attach(await UNIXSocketStream.from_socket(ours)) as client:
            seen.add((await client.status()).state)  # its process may just have been started
            while "ready" not in seen:
                seen.add((await soon(client)).state)
    assert seen >= {"loading", "ready"}


async def test_it_answers_while_it_evaluates_a_long_prompt(busy: DaemonProcess) -> None:
    prompt = " ".join(f"word{n}" for n in range(N_LONG // 3))
    answers = await meanwhile(busy, lambda client: ask(client, prompt, max_tokens=1, **GREEDY))
    told = [slot for status in answers for slot in status.slots if slot.state == "prompt"]
    evaluated = [slot.n_evaluated for slot in told]
    assert len(set(evaluated)) > 1
    assert evaluated == sorted(evaluated)
    assert max(slot.n_prompt for slot in told) > N_LONG


async def test_it_answers_while_many_streams_run(busy: DaemonProcess) -> None:
    asks = [(f"{n} is", {"max_tokens": 12, "ignore_end": True}) for n in range(N_STREAMS)]
    answers = await meanwhile(busy, lambda client: ask_all(client, asks))
    assert most(answers, "generating") > N_STREAMS // 2  # the first may end before the last begin
    assert any(status.tokens_per_s > 0 for status in answers)


async def test_it_answers_while_it_encodes_images(tmp_path: Path) -> None:
    projector = make_projector(Path(MODEL or ""), "phi4", HEAVY).write(tmp_path / "mmproj.gguf")
    options = (f"--mmproj={projector}", "--threads=1", "--slots=2", "--ctx=1024")
    async with start_daemon_process("smollm2", *options, engine="llama") as daemon:

        async def look(client: Client) -> None:
            for colour in ("red", "blue"):
                await ask(client, parts("This is", plain(colour, 256)), max_tokens=1, **GREEDY)

        answers = await meanwhile(daemon, look)
    assert most(answers, "awaiting_media") == 1
