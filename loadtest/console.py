"""What commands have in common: waiting for figures, printing them, and an exit status."""

import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import anyio
import msgspec
import typer

from loadtest.bars import Bar

FAILED = 1

T = TypeVar("T")


def wait(measure: Callable[[], Coroutine[None, None, T]], time_limit_s: float) -> T:
    """Run what measures, up to its end; SIGTERM ends it, and what it has started, as Ctrl-C does.

    Raises:
        TimeoutError: it takes too long.
    """

    async def measure_in_time() -> T:
        with anyio.fail_after(time_limit_s):
            return await measure()

    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    return anyio.run(measure_in_time)


def show(measured: msgspec.Struct, text: str, as_json: bool) -> None:
    """Print figures, for people or for machines."""
    print(msgspec.json.encode(measured).decode() if as_json else text)


def tell(line: str) -> None:
    """Say something beside the figures."""
    print(f"loadtest: {line}", file=sys.stderr, flush=True)


def exit_if_missed(missed: Sequence[Bar]) -> None:
    """Name the bars that are missed, and leave if there are any."""
    for bar in missed:
        tell(f"missed: {bar.name}: {bar.value:.3f}, limit {bar.sign} {bar.limit:g}")
    if missed:
        raise typer.Exit(FAILED)
