"""Room for large frames: what all connections hold of unfinished ones is bounded."""

import anyio
import pytest

from runnerd.frame_room import SMALL_BYTES, FrameInRoom, FrameRoom
from runnerd.intake import Intake

pytestmark = pytest.mark.anyio

LARGE = 10 * SMALL_BYTES
HALF = LARGE // 2


def make_room(n_frames: int = 2, intake: Intake | None = None) -> FrameRoom:
    return FrameRoom(Intake(1) if intake is None else intake, n_frames * LARGE)


async def begin(frame: FrameInRoom, number: int = 0, n_bytes: int = LARGE) -> None:
    await frame.follow(number, n_bytes // 2, n_bytes - n_bytes // 2)


async def waits(frame: FrameInRoom, n_bytes: int = LARGE, n_pending: int | None = None) -> bool:
    """Whether a frame, of which so much has come, has to wait; it gives up then."""
    with anyio.move_on_after(0.01):
        n_come = n_bytes // 2 if n_pending is None else n_pending
        await frame.follow(0, n_come, n_bytes - n_come)
        return False
    return True


async def test_so_many_frames_go_on_and_the_next_waits_for_the_end_of_one() -> None:
    room = make_room(2)
    first, second, third = (FrameInRoom(room) for _ in range(3))
    await begin(first)
    await begin(second)
    assert await waits(third)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin, third)
        await anyio.wait_all_tasks_blocked()
        second.let_go()
    assert await waits(second)


@pytest.mark.parametrize(("number", "n_pending"), [(1, 0), (1, 10), (0, 0)])
async def test_a_frame_that_is_complete_takes_no_room(number: int, n_pending: int) -> None:
    room = make_room(1)
    first, second = FrameInRoom(room), FrameInRoom(room)
    await begin(first)
    assert await waits(second)
    await first.follow(number, n_pending, 10)
    assert not await waits(second)


async def test_a_frame_takes_its_room_once_however_often_it_is_looked_at() -> None:
    room = make_room(2)
    first, second = FrameInRoom(room), FrameInRoom(room)
    for _ in range(5):
        await begin(first)
    assert not await waits(second)
    for _ in range(3):
        first.let_go()
    assert await waits(FrameInRoom(make_room(0))) is False  # one alone is never shut out
    assert not await waits(first)


async def test_a_small_frame_and_the_beginning_of_a_large_one_never_wait() -> None:
    room = make_room(1)
    await begin(FrameInRoom(room))
    assert await waits(FrameInRoom(room))
    assert not await waits(FrameInRoom(room), n_bytes=SMALL_BYTES)
    assert not await waits(FrameInRoom(room), n_bytes=SMALL_BYTES + LARGE, n_pending=SMALL_BYTES)


async def test_whoever_came_first_is_first_though_a_later_one_would_fit() -> None:
    room = make_room(2)
    holder = FrameInRoom(room)
    await begin(holder)
    order: list[str] = []

    async def come(name: str, n_bytes: int) -> None:
        await begin(FrameInRoom(room), n_bytes=n_bytes)
        order.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(come, "large", 2 * LARGE)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(come, "small", HALF)
        await anyio.wait_all_tasks_blocked()
        assert order == []
        holder.let_go()
        await anyio.wait_all_tasks_blocked()
        assert order == ["large"]
        tasks.cancel_scope.cancel()


async def test_who_gives_up_waiting_leaves_the_line_to_the_others() -> None:
    room = make_room(1)
    holder = FrameInRoom(room)
    await begin(holder)
    assert await waits(FrameInRoom(room))
    holder.let_go()
    assert not await waits(FrameInRoom(room))


async def test_no_large_frame_goes_on_while_whole_requests_take_too_much() -> None:
    intake = Intake(100)
    room = make_room(2, intake)
    intake.take(101)
    frame = FrameInRoom(room)
    assert await waits(frame)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin, frame)
        await anyio.wait_all_tasks_blocked()
        intake.give_back(1)


async def test_a_frame_that_is_complete_takes_no_room_whatever_its_client_waits_for() -> None:
    room = make_room(1)
    holder = FrameInRoom(room)
    await begin(holder, number=0)
    holder.let_go_if_complete(0, LARGE)
    assert holder.is_in_room
    holder.let_go_if_complete(1, LARGE)
    assert not holder.is_in_room
    assert not await waits(FrameInRoom(room))
