"""The way from threads into the event loop of a blocking client, which may be left meanwhile.

Calls are counted, and the loop ends when the last has ended: a portal that has stopped would
keep whoever waits for it for ever. A call that comes later is told that the client was left.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from threading import Condition
from typing import ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal

from runnerd.streams import ClientError

P = ParamSpec("P")
T = TypeVar("T")


class Gate:
    """Lets calls through to a portal until it is closed. Safe to use from any thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._is_closed = False
        self._n_inside = 0
        self._changed = Condition()
        self._opened: dict[ExitStack, None] = {}  # in the order in which they were opened

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function in the loop.

        Raises:
            ClientError: the gate is closed.
        """
        with self._inside():

            async def run() -> T:
                return await function(*args, **kwargs)

            return self._portal.call(run)

    def open(self, block: AbstractAsyncContextManager[T]) -> tuple[T, ExitStack]:
        """Enter a block in the loop; return what it gives, and the stack that leaves it.

        Raises:
            ClientError: the gate is closed, or was closed meanwhile.
        """
        stack = ExitStack()
        with self._inside():
            value = stack.enter_context(self._portal.wrap_async_context_manager(block))
            with self._changed:
                if not self._is_closed:
                    self._opened[stack] = None
                    return value, stack
            stack.close()
            raise _left()

    def leave(self, stack: ExitStack) -> None:
        """Leave a block that was opened, unless it has been left."""
        with self._changed:
            if stack not in self._opened:
                return
            del self._opened[stack]
            self._n_inside += 1
        self._leave(stack)

    def close(self) -> None:
        """Let no call in any more, and leave the blocks that are open."""
        with self._changed:
            self._is_closed = True
            stacks = list(self._opened)
            self._opened.clear()
            self._n_inside += len(stacks)
        for stack in stacks:
            self._leave(stack)

    def wait_until_empty(self) -> None:
        """Wait for the calls that are still inside; closing the connection ends them."""
        with self._changed:
            self._changed.wait_for(lambda: self._n_inside == 0)

    def _leave(self, stack: ExitStack) -> None:
        try:
            stack.close()
        finally:
            self._go_out()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._changed:
            if self._is_closed:
                raise _left()
            self._n_inside += 1
        try:
            yield
        finally:
            self._go_out()

    def _go_out(self) -> None:
        with self._changed:
            self._n_inside -= 1
            self._changed.notify_all()


def _left() -> ClientError:
    return ClientError("the client's block was left")
