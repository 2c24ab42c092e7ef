"""`runnerd top`: one or several daemons, live."""

import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from runnerd.commands.failure import translated
from runnerd.commands.path_options import socket_option
from runnerd.commands.status_text import status_line
from runnerd.commands.watched import Watched
from runnerd.harmless import harmless_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MIN_REDRAW_S = 0.1  # many daemons tell something at about the same time
SIGNALLED = 128


def top(
    socket: Annotated[list[Path], socket_option("Where one listens; may be given again.")],
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.05, max=3600.0)
    ] = 1.0,
) -> None:
    """Watch daemons live: state, slots, queue, cache, speed and the last error of each.

    Those that go are waited for. On a terminal q or Ctrl-C ends; elsewhere a line is written of
    each daemon at each look.

    Exit status: 0 ended by q, 128 + the signal otherwise.
    """
    daemons = [Watched(path, interval) for path in dict.fromkeys(socket)]
    with translated():
        raise typer.Exit(anyio.run(_run, daemons, interval))


async def _run(daemons: Sequence[Watched], interval_s: float) -> int:
    """Watch until a key or signal; return the exit status."""
    exit_code = 0
    changed = _Bell()

    async def obey(signals: AsyncIterator[signal.Signals]) -> None:
        nonlocal exit_code
        async for number in signals:
            exit_code = SIGNALLED + number
            tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(*SIGNALS) as signals:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(obey, signals)
                for daemon in daemons:
                    tasks.start_soon(daemon.watch, changed.ring)
                if sys.stdout.isatty():
                    await _show_live(daemons, changed)
                else:
                    await _write_lines(daemons, interval_s)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise _cause(group) from None
    return exit_code


def _cause(err: Exception) -> Exception:
    """Return the first of what went wrong: a full disk, say, or a terminal that is gone."""
    while isinstance(err, ExceptionGroup):
        err = err.exceptions[0]
    return err


class _Bell:
    """Wakes who waits when there is news."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, at_most_s: float) -> None:
        with anyio.move_on_after(at_most_s):
            await self._rung.wait()
        self._rung = anyio.Event()


# --- without a terminal ------------------------------------------------------------------------


async def _write_lines(daemons: Sequence[Watched], interval_s: float) -> None:
    await anyio.sleep(min(interval_s, 0.2))  # for the first answers
    while True:
        for daemon in daemons:
            sys.stdout.write(_line(daemon) + "\n")
        sys.stdout.flush()
        await anyio.sleep(interval_s)


def _line(daemon: Watched) -> str:
    path = harmless_line(str(daemon.path))
    if daemon.trouble or daemon.status is None:
        return f'{path} trouble="{harmless_line(daemon.trouble)}" silence_s={daemon.silence_s:.0f}'
    return f"{path} {status_line(daemon.status)}"


# --- on a terminal -----------------------------------------------------------------------------


async def _show_live(daemons: Sequence[Watched], changed: _Bell) -> None:
    from rich.live import Live

    from runnerd.commands.keyboard import single_keys, until_key
    from runnerd.commands.output import Output
    from runnerd.commands.top_view import top_view

    console = Output()

    def view() -> "RenderableType":
        hint = "q ends" if has_keys else "Ctrl-C ends"
        return top_view(daemons, console, hint)

    with (
        single_keys() as has_keys,
        Live(get_renderable=view, console=console, screen=True, auto_refresh=False) as live,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_redraw, live, changed)
            if has_keys:
                await until_key("q")
                tasks.cancel_scope.cancel()


async def _redraw(live: "Live", changed: _Bell) -> None:
    while True:
        live.refresh()
        await anyio.sleep(MIN_REDRAW_S)
        await changed.wait(1.0)  # times that run are shown in seconds
