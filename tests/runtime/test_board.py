"""The status: made once for a moment, told anew at each change; and how many may subscribe."""

import anyio
import pytest

from runnerd.board import Board
from runnerd.config import SessionLimits
from runnerd_protocol.messages import Cancel, Failed, Status, Subscribe
from tests.daemon import raw_client, running_daemon

pytestmark = pytest.mark.anyio


async def test_those_who_look_at_the_same_moment_see_the_same() -> None:
    n_asked = 0

    def n_connections() -> int:
        nonlocal n_asked
        n_asked += 1
        return 7

    async with running_daemon() as daemon:
        board = Board(daemon.runner, n_connections)
        seen = [board.news(request_id) for request_id in range(100)]
        assert [status.request_id for status in seen] == list(range(100))
        assert n_asked < 100
        assert not any(status.last for status in seen)


async def test_a_change_is_seen_at_once() -> None:
    async with running_daemon() as daemon:
        board = Board(daemon.runner, lambda: 0)
        assert board.news(1).state == "ready"
        daemon.runner.stop()
        assert board.news(1).state in ("draining", "stopped")


async def test_a_connection_has_only_so_many_subscriptions() -> None:
    limits = SessionLimits(max_subscriptions=2)
    async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
        await client.send(*(Subscribe(i) for i in range(3)))
        refused = await client.receive_a(Failed)
        assert (refused.request_id, refused.code, refused.retryable) == (2, "overloaded", True)
        assert refused.details == {"n_subscriptions": 2, "max_subscriptions": 2}
        await client.send(Cancel(0))
        with anyio.fail_after(5):
            while not (await client.receive_a(Status, 0)).last:
                pass
        await client.send(Subscribe(2))
        await client.receive_a(Status, 2)
