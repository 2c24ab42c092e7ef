import gc

import anyio
import pytest

from runnerd.launch_events import KEPT_EVENTS, EventFeed, LoadProgress, StateChanged

pytestmark = pytest.mark.anyio

READY = StateChanged("ready")


async def test_every_listener_hears_everything_that_comes_after_it() -> None:
    feed = EventFeed()
    early = feed.open()
    feed.put(StateChanged("loading"))
    late = feed.open()
    feed.put(READY)
    feed.end()
    assert [event async for event in early] == [StateChanged("loading"), READY]
    assert [event async for event in late] == [READY]


async def test_of_what_is_not_read_the_newest_are_kept_and_the_others_counted() -> None:
    feed = EventFeed()
    stream = feed.open()
    for number in range(KEPT_EVENTS + 10):
        feed.put(LoadProgress("weights", number))
    feed.end()
    heard = [event async for event in stream]
    assert stream.n_dropped == 10
    assert heard == [LoadProgress("weights", 10 + n) for n in range(KEPT_EVENTS)]


async def test_who_waits_is_woken_by_an_event_and_by_the_end() -> None:
    feed = EventFeed()
    stream = feed.open()

    async def tell() -> None:
        await anyio.wait_all_tasks_blocked()
        feed.put(READY)
        await anyio.wait_all_tasks_blocked()
        feed.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        with anyio.fail_after(5):
            assert [event async for event in stream] == [READY]


async def test_a_stream_that_is_opened_after_the_end_is_at_its_end() -> None:
    feed = EventFeed()
    feed.end()
    assert await anext(feed.open(), None) is None


async def test_a_listener_that_is_gone_costs_nothing() -> None:
    feed = EventFeed()
    feed.open()
    gc.collect()
    assert not list(feed._streams)
