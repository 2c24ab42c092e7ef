"""A console for stdout that says when nobody reads it any more."""

import errno

from rich.console import Console


class Output(Console):
    """Rich's console, except that a closed stdout is left to the caller.

    Rich would end the process then and there: with a group of exceptions, from inside a task.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Raise what Rich has caught."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads stdout")
