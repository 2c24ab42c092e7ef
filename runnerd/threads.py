"""Work in threads that leaves nothing behind when it fails.

An error that is raised in a thread, its traceback, and the future that brings it hold each other,
and with them all that was worked on: megabytes of a prompt or a file, until the garbage collector
looks through everything.
"""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from runnerd.errors import RequestError

T = TypeVar("T")


async def in_thread(function: Callable[[], T], limiter: CapacityLimiter | None = None) -> T:
    """Return what a function returns in a thread, which runs to its end whoever is cancelled.

    Raises:
        RequestError: what the function raises, as an error that knows nothing of the thread.
    """
    result = await to_thread.run_sync(_outcome, function, limiter=limiter)
    if isinstance(result, _Raised):
        raise _fresh(result.error)
    return result


class _Raised:
    """An error on its way out of a thread."""

    def __init__(self, error: RequestError) -> None:
        self.error = error


def _outcome(function: Callable[[], T]) -> T | _Raised:
    try:
        return function()
    except RequestError as err:
        return _Raised(_fresh(err))


def _fresh(error: RequestError) -> RequestError:
    """Return an error of the same kind that says the same, raised nowhere so far."""
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh
