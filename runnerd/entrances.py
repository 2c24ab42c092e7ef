"""The sockets where clients come in: our own path's, and those that a service manager passed.

At the end they are closed, before anything else ends. Who connects to a passed one from then on
waits in the kernel's queue, until our successor accepts. The server accepts at duplicates.
"""

import anyio
import structlog
from anyio.abc import TaskGroup

from runnerd.listener import BoundSocket
from runnerd.server import Server
from runnerd.systemd.environment import PassedSocket

log = structlog.get_logger()

UNLINK_CHECK_S = 5.0  # how soon a deleted socket file is noticed


class Entrances:
    """What one daemon listens at. Only the file of `bound` is ours to watch and to remove."""

    def __init__(
        self, server: Server, bound: BoundSocket | None, passed: tuple[PassedSocket, ...]
    ) -> None:
        self._server = server
        self._bound = bound
        self._passed = passed

    @property
    def names(self) -> list[str]:
        """Where clients find us, for the log."""
        names = [] if self._bound is None else [str(self._bound.path)]
        return names + [f"{each.name}:{each.socket.getsockname()!s}" for each in self._passed]

    def open(self, tasks: TaskGroup) -> None:
        """Let clients in from now on; their sessions run among the tasks."""
        if self._bound is not None:
            tasks.start_soon(self._server.listen, self._bound.socket.dup(), tasks)
            tasks.start_soon(watch_path, self._bound)
        for each in self._passed:
            tasks.start_soon(self._server.listen, each.socket.dup(), tasks)

    def close(self) -> None:
        """Leave further clients to whoever comes next. May be called again."""
        self._server.stop_accepting()
        if self._bound is not None:
            self._bound.close()
        for each in self._passed:
            each.socket.close()


async def watch_path(bound: BoundSocket) -> None:
    """Say when the socket file was deleted: nobody new can reach us then."""
    while bound.still_ours():  # noqa: ASYNC110  # a deletion sets no event
        await anyio.sleep(UNLINK_CHECK_S)
    if bound.socket.fileno() >= 0:  # else it was us who took it away
        log.warning("daemon.socket_deleted", path=str(bound.path))
