"""One thread for all calls into an engine, or for one kind of them.

A thread of its own, always the same: an engine is not thread-safe, and OpenMP keeps a team of
threads for every thread that calls it. It is a daemon thread, so that a native call which
never returns cannot hold up the exit.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

BEGIN_S = 2e-4  # ten times what a thread takes to wake up

T = TypeVar("T")
Post = Callable[[Callable[[], None]], object]


class Call(Generic[T]):
    """A function to run, and what became of it.

    `following` is another that runs right behind it; the function may set it. `done` is made
    anew unless it is given: only an event loop can make one.
    """

    following: "Call[T] | None" = None

    def __init__(self, function: Callable[[], T], done: anyio.Event | None = None) -> None:
        self.done = anyio.Event() if done is None else done
        self._begun = Lock()
        self._begun.acquire()
        self._function = function
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the function, on the engine's thread, and hold it no more: it may hold us."""
        self._begun.release()
        function = self._function
        del self._function
        try:
            self._result = function()
        except BaseException as err:  # handed to the caller, who waits for it
            self._error = err

    def let_begin(self) -> None:
        """Leave the interpreter to the thread until the function has begun.

        Whoever goes on at once keeps it from the thread. One that is busy is not waited for.
        """
        self._begun.acquire(timeout=BEGIN_S)

    async def wait(self, *, abandon_on_cancel: bool = False) -> T:
        """Wait for the end of the function; return or raise what it did.

        A caller that is cancelled waits for that end, or is let go with `abandon_on_cancel`.
        """
        try:
            await self.done.wait()
        except anyio.get_cancelled_exc_class():
            if not abandon_on_cancel:
                # Not shielded from the start: a scope for every step costs as much as the rest.
                with anyio.CancelScope(shield=True):
                    await self.done.wait()
            raise
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set, unless T is None


class EngineThread:
    """Runs functions one after another. Make and use it inside one event loop."""

    def __init__(self, name: str = "engine") -> None:
        self._calls: SimpleQueue[Call[object] | None] = SimpleQueue()
        post = poster(current_token().native_token)
        self._thread = Thread(target=self._serve, args=(post,), name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Run a function to its end, even if the caller is cancelled meanwhile.

        A caller that is cancelled waits for that end, or is let go with `abandon_on_cancel`.
        """
        call = Call(function)
        self._calls.put(call)  # type: ignore[arg-type]  # the thread only runs it
        return await call.wait(abandon_on_cancel=abandon_on_cancel)

    def begin(self, call: Call[T]) -> None:
        """Have a call run; the caller goes on meanwhile, and is to wait for it."""
        self._calls.put(call)  # type: ignore[arg-type]  # the thread only runs it

    def close(self) -> None:
        """Let the thread end after the calls it has."""
        self._calls.put(None)

    def _serve(self, post: Post) -> None:
        call: Call[object] | None
        while (call := self._calls.get()) is not None:
            while call is not None:
                call.run()
                following = call.following
                try:
                    post(call.done.set)
                except RuntimeError:  # the event loop has ended: nobody waits any more
                    return
                call = following  # and no more what it was, which may hold a lot of memory


def poster(event_loop: object) -> Post:
    """Return what has a function run in an event loop, a native token, without waiting for it.

    Threads may call it, and signal handlers.

    anyio's own `from_thread` waits for the answer, which costs 45 us a step.
    """
    if isinstance(event_loop, AbstractEventLoop):
        return event_loop.call_soon_threadsafe
    from trio.lowlevel import TrioToken  # loaded already, if it is trio that runs

    assert isinstance(event_loop, TrioToken)
    return event_loop.run_sync_soon
