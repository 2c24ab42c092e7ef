"""Tracebacks for the log: where an error came from, without what a client may have written.

The message of an exception can quote the value at fault, so it is shown only of those kinds whose
messages are about code, types and files; of others, how long it is.
"""

import traceback
from collections.abc import Iterator

from runnerd.errors import RequestError, RunnerdError

# What Python says of these, and we of ours, quotes no values.
TELLING = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    IndexError,
    MemoryError,
    NameError,
    OSError,
    RecursionError,
    RunnerdError,
    TypeError,
)
MOST_EXCEPTIONS = 20  # of a chain or a group


def traceback_of(err: BaseException) -> str:
    """Return the traceback of an exception, and of those that it came from or that it holds."""
    return "".join(_parts(err, [])).rstrip("\n")


def _parts(err: BaseException, seen: list[BaseException]) -> Iterator[str]:
    if len(seen) >= MOST_EXCEPTIONS or any(err is each for each in seen):
        yield f"{type(err).__name__} ...\n"
        return
    seen.append(err)
    if err.__cause__ is not None:
        yield from _parts(err.__cause__, seen)
        yield "The exception above was the direct cause of this one:\n"
    elif err.__context__ is not None and not err.__suppress_context__:
        yield from _parts(err.__context__, seen)
        yield "While the exception above was handled, there was another one:\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(err.__traceback__)
    yield f"{_heading(err)}\n"
    if isinstance(err, BaseExceptionGroup):
        for i, each in enumerate(err.exceptions, 1):
            yield f"No. {i} of {len(err.exceptions)} in the group:\n"
            yield from _parts(each, seen)


def _heading(err: BaseException) -> str:
    kind = type(err)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        text = str(err)
    except Exception:  # a bug in an exception is not to hide another
        return name
    if not text:
        return name
    if isinstance(err, TELLING) and not isinstance(err, RequestError):
        return f"{name}: {text}"
    return f"{name} (its message of {len(text)} characters could quote a request)"
