"""`runnerd demo`: what it looks like when one model serves several at once."""

import sys
from typing import Annotated, Literal

import anyio
import typer

from runnerd.commands.failure import translated
from runnerd.models import DEFAULT_MODEL


def demo(
    model: Annotated[
        str, typer.Option(help="A GGUF file, or the alias 'smollm2'.")
    ] = DEFAULT_MODEL,
    engine: Annotated[
        Literal["llama", "reference"], typer.Option(help="What runs the model.")
    ] = "llama",
    max_tokens: Annotated[int, typer.Option(help="Of each answer.", min=1)] = 120,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines, as when stdout is no terminal.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="The daemon's warnings to stderr.")
    ] = False,
) -> None:
    """Answer four questions at once, side by side, and show how fast.

    Starts a private daemon, which ends with the command.
    """
    from runnerd import demo as show  # Rich is for people: nobody else waits for it

    with translated():
        anyio.run(show.run, model, engine, max_tokens, not plain and sys.stdout.isatty(), verbose)
