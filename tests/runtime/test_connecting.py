"""How a client finds its daemon, or says why it does not."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from runnerd.client import NotAllowed, connect
from runnerd.socket_io import BACKLOG_S, connect_to
from tests.daemon import PATIENCE_S
from tests.others import let_all_connect, needs_root

pytestmark = pytest.mark.anyio


@contextmanager
def crowded(path: Path) -> Iterator[socket.socket]:
    """Listen at a path with a backlog that has no room for one more."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(path))
        listening.listen(0)
        first = stack.enter_context(socket.socket(socket.AF_UNIX))
        first.connect(str(path))
        yield listening


async def test_a_client_waits_for_room_in_a_full_backlog_and_does_not_spin(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with crowded(path) as listening:
        used_at = time.process_time()
        with anyio.move_on_after(20 * BACKLOG_S) as waited:
            await connect_to(path)
        assert waited.cancelled_caught
        assert time.process_time() - used_at < 15 * BACKLOG_S
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:

                async def come() -> None:
                    async with await connect_to(path) as stream:
                        await stream.send(b"here")

                tasks.start_soon(come)
                await anyio.wait_all_tasks_blocked()
                listening.accept()[0].close()
        with listening.accept()[0] as ours:
            assert ours.recv(10) == b"here"


@needs_root
async def test_who_may_not_connect_is_told_so_and_not_that_nobody_listens(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with crowded(path):
        let_all_connect(path, 0o600)
        os.seteuid(61_001)
        try:
            with pytest.raises(NotAllowed, match=r"Permission denied.*group"):
                async with connect(path):
                    pass
        finally:
            os.seteuid(0)
