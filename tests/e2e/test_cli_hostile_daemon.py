"""A daemon may say anything in its texts; commands show it, and are not steered by it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from msgspec.structs import replace

from runnerd_protocol.messages import (
    Failed,
    FailedAllocation,
    GetStatus,
    MemoryReport,
    Plan,
    SlotStatus,
    Status,
    Subscribe,
)
from tests.processes import running
from tests.scripted import Peer, scripted, talking
from tests.some_memory import some_device, some_memory

pytestmark = pytest.mark.anyio

TITLE = "\x1b]0;owned\x07"  # what it says would name the terminal's window
HOSTILE = f"[red]{TITLE}\n\u202e\x9b2J"
MEMORY = some_memory(
    some_device(HOSTILE),
    model=HOSTILE,
    architecture=HOSTILE,
    fits=False,
    failed=FailedAllocation(HOSTILE, HOSTILE),
)
STATUS = Status(
    0,
    "failed",
    model=HOSTILE,
    load_phase=HOSTILE,
    stalled=HOSTILE,
    error=HOSTILE,
    error_code=HOSTILE,
    memory=MEMORY,
    slots=[SlotStatus(0, "prompt", 1, 40)],
)


async def answer_status(peer: Peer) -> None:
    asked = await peer.expect(GetStatus)
    await peer.say(replace(STATUS, request_id=asked.request_id, last=True))


async def answer_load(peer: Peer) -> None:
    asked = await peer.expect(GetStatus)
    await peer.say(replace(STATUS, request_id=asked.request_id, last=True, state="loading"))


async def answer_plan(peer: Peer) -> None:
    asked = await peer.expect(Plan)
    await peer.say(MemoryReport(asked.request_id, MEMORY))


async def refuse_plan(peer: Peer) -> None:
    asked = await peer.expect(Plan)
    await peer.say(Failed(asked.request_id, HOSTILE, HOSTILE, retryable=False))


async def tell_status(peer: Peer) -> None:
    asked = await peer.expect(Subscribe)
    await peer.say(replace(STATUS, request_id=asked.request_id))
    await anyio.sleep_forever()


def check_harmless(text: str) -> None:
    assert "owned" in text
    for char in "\x07\x9b\u202e":
        assert char not in text
    assert TITLE[:4] not in text


@pytest.mark.parametrize("on_terminal", [False, True])
@pytest.mark.parametrize(
    ("talk", "command", "code"),
    [
        (answer_status, "status", 0),
        (answer_status, "status --json", 0),
        (answer_load, "status", 0),
        (answer_plan, "plan", 71),
        (answer_plan, "plan --json", 71),
        (refuse_plan, "plan", 1),
    ],
)
async def test_an_answer_is_shown_and_steers_nothing(
    talk: Callable[[Peer], Awaitable[None]], command: str, code: int, on_terminal: bool
) -> None:
    def ask(path: Path) -> str:
        with running(*command.split(), f"--socket={path}", on_terminal=on_terminal) as asking:
            text = asking.rest()
            assert asking.wait() == code, text
        return text

    async with scripted(talking(talk)) as path:
        text = await to_thread.run_sync(ask, path)
    check_harmless(text)
    if not on_terminal:
        assert "\x1b" not in text


@pytest.mark.parametrize("on_terminal", [False, True])
async def test_what_is_watched_is_shown_and_steers_nothing(on_terminal: bool) -> None:
    def watch(path: Path) -> str:
        with running("top", f"--socket={path}", on_terminal=on_terminal) as watching:
            watching.wait_for("owned")
            watching.interrupt()
            assert watching.wait() == 130
            return watching.rest()

    async with scripted(talking(tell_status)) as path:
        check_harmless(await to_thread.run_sync(watch, path))
