"""A bar for the load of a model, on a terminal's stderr; elsewhere nothing."""

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self

from runnerd.harmless import harmless_line
from runnerd_protocol.messages import DaemonState, Status

if TYPE_CHECKING:
    from rich.progress import Progress

STDERR = 2


class LoadBar:
    """Shows the load's phase and fraction until it is over, then vanishes.

    It draws on a copy of descriptor 2, made here, since that one may later be a pipe to the
    log. It takes one line, which log lines wipe before they write.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        if os.isatty(STDERR):
            self._progress = _make_progress()

    def show(self, state: DaemonState, phase: str, fraction: float) -> None:
        """Draw the bar anew; a state after the load ends it."""
        if self._progress is None:
            return
        if state not in ("starting", "loading"):
            self.close()
            return
        self._progress.start()
        self._progress.update(
            self._progress.task_ids[0], description=phase, completed=fraction, refresh=True
        )

    def show_status(self, status: Status) -> None:
        """Draw what a daemon tells of itself."""
        self.show(status.state, harmless_line(status.load_phase), status.load_fraction)

    def close(self) -> None:
        """Take the bar away. May be called again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def _make_progress() -> "Progress":
    from rich.console import Console  # not where there is no terminal
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(file=os.fdopen(os.dup(STDERR), "w"))
    progress = Progress(
        TextColumn("loading"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        auto_refresh=False,  # each piece of news redraws it
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.add_task("", total=1.0)
    return progress
