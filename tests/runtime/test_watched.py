from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from runnerd.commands.watched import Watched
from tests.daemon import PATIENCE_S, running_daemon
from tests.scripted import scripted

pytestmark = pytest.mark.anyio


class Watch:
    """A watch that can be waited for."""

    def __init__(self, path: Path) -> None:
        self.daemon = Watched(path, 0.05)
        self._news = anyio.Event()

    def ring(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, holds: Callable[[Watched], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not holds(self.daemon):
                await self._news.wait()


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Watch]:
    async with anyio.create_task_group() as tasks:
        watch = Watch(path)
        tasks.start_soon(watch.daemon.watch, watch.ring)
        yield watch
        tasks.cancel_scope.cancel()


async def test_a_daemon_tells_its_status() -> None:
    async with running_daemon() as daemon, watching(daemon.path) as watch:
        await watch.until(lambda it: it.status is not None)
        assert watch.daemon.note == ""


async def test_a_daemon_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    async with running_daemon() as daemon:
        path = tmp_path / "socket"
        async with watching(path) as watch:
            await watch.until(lambda it: it.note == "nobody listens there")
            assert watch.daemon.status is None
            path.symlink_to(daemon.path)
            await watch.until(lambda it: it.status is not None and not it.note)


async def test_a_daemon_that_goes_and_comes_again_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with watching(path) as watch:
        for n in range(2):
            async with running_daemon() as daemon:
                path.unlink(missing_ok=True)
                path.symlink_to(daemon.path)
                await watch.until(lambda it: it.status is not None and not it.note)
            await watch.until(lambda it: bool(it.note))
            assert watch.daemon.note in ("it has stopped", "it has gone"), n


async def test_a_connection_that_breaks_is_said() -> None:
    async def close(_: object) -> None:
        """Say nothing."""

    async with scripted(close) as path, watching(path) as watch:
        await watch.until(lambda it: it.note not in ("", "connecting"))
        assert watch.daemon.status is None
        assert "closed before its welcome" in watch.daemon.note
