"""A bell: who is woken by it, and who is not."""

import anyio
import pytest

from runnerd.bell import Bell

pytestmark = pytest.mark.anyio


class Sleepers:
    """Tasks that count how often a bell has woken them."""

    def __init__(self, bell: Bell) -> None:
        self.n_woken = 0
        self._bell = bell

    async def sleep(self) -> None:
        while True:
            await self._bell.wait()
            self.n_woken += 1


async def test_who_waits_is_woken_each_time_it_rings() -> None:
    bell = Bell()
    sleepers = Sleepers(bell)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleepers.sleep)
        for n_rings in range(1, 4):
            await anyio.wait_all_tasks_blocked()
            bell.ring()
            await anyio.wait_all_tasks_blocked()
            assert sleepers.n_woken == n_rings
        tasks.cancel_scope.cancel()


async def test_all_who_wait_are_woken_at_once() -> None:
    bell = Bell()
    sleepers = Sleepers(bell)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(sleepers.sleep)
        await anyio.wait_all_tasks_blocked()
        bell.ring()
        bell.ring()  # nobody is back yet
        await anyio.wait_all_tasks_blocked()
        assert sleepers.n_woken == 3
        tasks.cancel_scope.cancel()


async def test_a_ring_that_nobody_waited_for_is_not_kept() -> None:
    bell = Bell()
    bell.ring()
    with anyio.move_on_after(0) as scope:
        await bell.wait()
    assert scope.cancelled_caught


async def test_the_wake_of_who_was_cancelled_is_not_left_for_the_next() -> None:
    bell = Bell()
    for _ in range(3):
        with anyio.move_on_after(0):
            await bell.wait()
    bell.ring()
    sleepers = Sleepers(bell)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleepers.sleep)
        await anyio.wait_all_tasks_blocked()
        assert sleepers.n_woken == 0
        bell.ring()
        await anyio.wait_all_tasks_blocked()
        assert sleepers.n_woken == 1
        tasks.cancel_scope.cancel()
