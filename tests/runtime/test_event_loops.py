"""What concerns asyncio alone: its own event loop and uvloop's, started as embedders start them."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
import uvloop

from runnerd.client import connect
from runnerd.engine_thread import EngineThread
from tests.daemon import running_daemon


@pytest.mark.asyncio
async def test_an_engine_thread_answers_into_a_loop_that_anyio_did_not_start() -> None:
    thread = EngineThread()
    squares = await asyncio.gather(*(thread.call(partial(pow, n, 2)) for n in range(4)))
    assert squares == [0, 1, 4, 9]
    thread.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_daemon_and_its_client_run_in_a_loop_of_the_embedder(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def generate() -> str:
        async with running_daemon("layers=0") as daemon, connect(daemon.path) as client:
            return (await client.complete("x", max_tokens=8, temperature=0.0)).text

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert len(runner.run(generate())) == 8
