"""On a clock that jumps from one deadline to the next: trio's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio.testing

from runnerd.stall_clock import StallClock, is_idle, progress_of
from runnerd_protocol.messages import SlotState, SlotStatus, Status

pytestmark = pytest.mark.anyio

TIMEOUT_S = 10.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Watched:
    """A clock, and what it has told: ("stall", what) and ("recover", seconds)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.clock = StallClock(
            TIMEOUT_S,
            lambda what, _: self.told.append(("stall", what)),
            lambda still_s: self.told.append(("recover", round(still_s, 3))),
        )


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    each = Watched()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(each.clock.run)
        yield each
        each.clock.stop()


def loading(fraction: float, phase: str = "weights") -> Status:
    return Status(1, "loading", load_phase=phase, load_fraction=fraction)


def working(n_steps: int) -> Status:
    slots = [SlotStatus(0, "generating"), SlotStatus(1, "idle")]
    return Status(1, "ready", n_slots=2, n_slots_free=1, n_steps=n_steps, slots=slots)


async def test_a_slow_load_that_moves_is_never_stalled() -> None:
    async with watched() as each:
        for number in range(100):
            each.clock.see(loading(number / 100))
            await anyio.sleep(TIMEOUT_S * 0.89)
    assert each.told == []


async def test_a_load_that_tells_the_same_again_and_again_is_stalled_once() -> None:
    async with watched() as each:
        for _ in range(100):
            each.clock.see(loading(0.5))
            await anyio.sleep(1.0)
    assert each.told == [("stall", "weights")]


async def test_a_stall_is_told_when_the_time_is_over_and_not_earlier() -> None:
    async with watched() as each:
        each.clock.see(loading(0.5))
        await anyio.sleep(TIMEOUT_S - 0.01)
        assert each.told == []
        await anyio.sleep(0.02)
        assert each.told == [("stall", "weights")]


async def test_a_child_that_never_says_anything_is_stalled_at_the_start() -> None:
    async with watched() as each:
        await anyio.sleep(TIMEOUT_S * 1.1)
    assert each.told == [("stall", "start")]


async def test_what_moves_again_has_recovered_and_can_stall_again() -> None:
    async with watched() as each:
        each.clock.see(loading(0.5))
        await anyio.sleep(TIMEOUT_S * 2)
        each.clock.see(loading(0.6))
        await anyio.sleep(TIMEOUT_S * 2)
        each.clock.see(loading(0.0, "warm-up"))
    assert each.told == [
        ("stall", "weights"),
        ("recover", 20.0),
        ("stall", "weights"),
        ("recover", 20.0),
    ]


async def test_an_idle_daemon_moves_by_answering() -> None:
    idle = Status(1, "ready", n_slots=2, n_slots_free=2)
    async with watched() as each:
        for _ in range(100):
            each.clock.see(idle)
            await anyio.sleep(1.0)
        assert each.told == []
        await anyio.sleep(TIMEOUT_S * 1.1)
    assert each.told == [("stall", "work")]


async def test_a_daemon_with_work_moves_by_its_steps() -> None:
    async with watched() as each:
        for number in range(30):
            each.clock.see(working(number // 5))
            await anyio.sleep(1.0)
        assert each.told == []
        for _ in range(12):
            each.clock.see(working(6))
            await anyio.sleep(1.0)
    assert each.told == [("stall", "work")]


async def test_a_parent_that_was_stopped_itself_reads_first_and_judges_then() -> None:
    async with watched() as each:
        each.clock.see(loading(0.5))
        await anyio.sleep(TIMEOUT_S * 0.95)  # the first deadline is over: as after SIGCONT
        each.clock.see(loading(0.6))
        await anyio.sleep(TIMEOUT_S * 0.5)
    assert each.told == []


def test_a_stalled_daemon_is_not_idle_and_its_state_is_no_progress() -> None:
    stalled = Status(1, "stalled", n_slots=2, n_slots_free=2, n_steps=3)
    assert not is_idle(stalled)
    assert progress_of(stalled) == progress_of(Status(1, "ready", n_steps=3))


async def test_a_daemon_whose_clients_do_not_read_has_not_stalled() -> None:
    slots = [SlotStatus(0, "paused"), SlotStatus(1, "idle")]
    waits = Status(1, "ready", n_slots=2, n_slots_free=1, n_waiting=1, slots=slots)
    async with watched() as each:
        for _ in range(100):
            each.clock.see(waits)
            await anyio.sleep(1.0)
    assert each.told == []


@pytest.mark.parametrize("state", ["prompt", "generating", "awaiting_media"])
def test_a_daemon_is_not_idle_as_long_as_one_slot_works(state: SlotState) -> None:
    slots = [SlotStatus(0, "paused"), SlotStatus(1, state)]
    assert not is_idle(Status(1, "ready", n_slots=2, slots=slots))
