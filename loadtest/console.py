"""What commands have in common: waiting for figures, printing them, errors, an exit status."""

import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import anyio
import msgspec
import typer

from loadtest.bars import Bar, missed

FAILED = 1

Tell = Callable[[str], None]
"""How a measurement that takes minutes says how far it is; commands have `tell` for it."""

T = TypeVar("T")


def wait(measure: Callable[[], Coroutine[None, None, T]], time_limit_s: float) -> T:
    """Run what measures, up to its end or to a SIGTERM.

    Raises:
        TimeoutError: it takes too long.
    """

    async def measure_in_time() -> T:
        with anyio.fail_after(time_limit_s):
            return await measure()

    heed_sigterm()
    # Whoever measures is to take little of the cores that it measures.
    return anyio.run(measure_in_time, backend_options={"use_uvloop": True})


def heed_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does: blocks are left, and what they have started ends.

    Also in the background of a shell, which has its jobs ignore that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def show(measured: msgspec.Struct | Sequence[msgspec.Struct], text: str, as_json: bool) -> None:
    """Print figures, for people or for machines."""
    print(msgspec.json.encode(measured).decode() if as_json else text)


def tell(line: str) -> None:
    """Say something beside the figures."""
    print(f"loadtest: {line}", file=sys.stderr, flush=True)


def exit_if_missed(bars: Sequence[Bar]) -> None:
    """Name the bars that are missed, and leave if there are any."""
    for bar in missed(bars):
        tell(f"missed: {bar.name}: {bar.value:.3f}, limit {bar.sign} {bar.limit:g}")
    if missed(bars):
        raise typer.Exit(FAILED)


def first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return an error of those that tasks side by side have failed with."""
    err = group.exceptions[0]
    return first_of(err) if isinstance(err, BaseExceptionGroup) else err
