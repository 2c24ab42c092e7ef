"""A daemon that many examples of one property share, and a plain call to ask it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anyio.from_thread import BlockingPortal, start_blocking_portal

from runnerd.client import Client, connect
from tests.daemon import running_daemon
from tests.e2e.asking import Answer, ask, literal


@dataclass(frozen=True, slots=True)
class Examples:
    """Asks a daemon that runs in a thread of its own."""

    portal: BlockingPortal
    client: Client

    def forced(self, text: str, **options: object) -> Answer:
        """Have a text said."""

        async def say() -> Answer:
            return await ask(self.client, "say", grammar=literal(text), **options)

        return self.portal.call(say)


@contextmanager
def examples() -> Iterator[Examples]:
    """Run the daemon for a `with` block."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running_daemon()) as daemon,
        portal.wrap_async_context_manager(connect(daemon.path)) as client,
    ):
        yield Examples(portal, client)
