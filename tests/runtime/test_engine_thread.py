"""One thread, calls in order, and what happens when one end of it goes."""

import threading
import weakref

import anyio
import pytest
from anyio import to_thread

from runnerd.engine_thread import Call, EngineThread

pytestmark = pytest.mark.anyio


async def test_calls_run_in_order_on_one_thread_that_is_not_ours() -> None:
    thread = EngineThread()
    seen: list[tuple[int, int]] = []

    async def call(number: int) -> None:
        await thread.call(lambda: seen.append((number, threading.get_ident())))

    for number in range(5):
        await call(number)
    thread.close()
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4]
    assert len({ident for _, ident in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_a_call_gives_back_what_its_function_returned_or_raised() -> None:
    thread = EngineThread()
    assert await thread.call(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    assert await thread.call(lambda: 4) == 4
    thread.close()


async def test_to_let_a_call_begin_is_not_to_wait_for_the_one_before() -> None:
    thread = EngineThread()
    may_end = threading.Event()
    first, second = Call(may_end.wait), Call(lambda: 3)
    thread.begin(first)
    thread.begin(second)
    second.let_begin()
    may_end.set()
    with anyio.fail_after(5):
        assert await first.wait()
        assert await second.wait() == 3
    thread.close()


async def test_a_call_that_a_function_has_set_behind_its_own_runs_before_others() -> None:
    thread = EngineThread()
    order: list[str] = []
    following = Call(lambda: order.append("following"))

    def lead() -> None:
        order.append("leading")
        leading.following = following

    leading = Call(lead)
    thread.begin(leading)
    with anyio.fail_after(5):
        await thread.call(lambda: order.append("other"))
        await following.wait()
    assert order == ["leading", "following", "other"]
    thread.close()


async def test_a_cancelled_caller_waits_for_the_end_of_its_call() -> None:
    thread = EngineThread()
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        may_end.wait()
        ended.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(thread.call, work)
            await to_thread.run_sync(started.wait)
            tasks.cancel_scope.cancel()
            may_end.set()
    assert ended.is_set()
    thread.close()


async def test_a_caller_that_would_rather_go_is_let_go() -> None:
    thread = EngineThread()
    started, may_end = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        may_end.wait()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: thread.call(work, abandon_on_cancel=True))
            await to_thread.run_sync(started.wait)
            tasks.cancel_scope.cancel()
        may_end.set()
        assert await thread.call(lambda: 3) == 3
    thread.close()


async def test_the_thread_keeps_nothing_of_a_call_that_is_over() -> None:
    class Large:
        pass

    thread = EngineThread()
    gone = threading.Event()
    large = await thread.call(Large)
    weakref.finalize(large, gone.set)
    del large
    assert await to_thread.run_sync(gone.wait, 5)
    thread.close()


async def test_the_event_loop_runs_while_a_call_does() -> None:
    thread = EngineThread()
    may_end = threading.Event()
    async with anyio.create_task_group() as tasks:
        call = Call(may_end.wait)
        thread.begin(call)
        tasks.start_soon(call.wait)
        await anyio.wait_all_tasks_blocked()
        assert not call.done.is_set()
        may_end.set()
    assert call.done.is_set()
    thread.close()


async def test_closing_ends_the_thread_after_its_calls() -> None:
    thread = EngineThread()
    threads: list[threading.Thread] = []
    await thread.call(lambda: threads.append(threading.current_thread()))
    thread.close()
    await to_thread.run_sync(threads[0].join, 5)
    assert not threads[0].is_alive()


async def leave_a_call_behind(may_end: threading.Event) -> threading.Thread:
    thread = EngineThread()
    thread._calls.put(Call[object](may_end.wait))
    return thread._thread


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_that_outlives_the_event_loop_ends_quietly(backend: str) -> None:
    may_end = threading.Event()
    thread = anyio.run(leave_a_call_behind, may_end, backend=backend)
    may_end.set()
    thread.join(5)
    assert not thread.is_alive()
