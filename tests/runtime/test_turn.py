"""Turns come in their order, whoever gives up."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.turn import Turn


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_a_turn_comes_when_all_before_have_passed(order: list[int], quitters: set[int]) -> None:
    async def main() -> None:
        turns = [Turn()]
        for _ in order[1:]:
            turns.append(Turn(turns[-1]))
        came: list[int] = []

        async def take(number: int) -> None:
            await turns[number].come()
            came.append(number)
            turns[number].end()

        async with anyio.create_task_group() as tasks:
            for number in order:
                if number in quitters:
                    turns[number].end()
                else:
                    tasks.start_soon(take, number)
        assert came == sorted(set(order) - quitters)

    anyio.run(main)


@pytest.mark.anyio
async def test_many_that_give_up_leave_no_line_behind() -> None:
    first = last = Turn()
    for _ in range(1000):
        last = Turn(last)
        last.end()
    assert last.before is not None
    first.end()
    last = Turn(last)
    last.end()
    assert last.before is None
