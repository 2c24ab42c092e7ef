"""The `runnerd` command: what a command raises becomes one line on stderr and an exit status."""

import sys
from contextlib import suppress
from typing import Annotated

import typer

from runnerd import __version__
from runnerd.commands.demo import demo
from runnerd.commands.embed import embed
from runnerd.commands.failure import USAGE, CommandFailed
from runnerd.commands.generate import generate
from runnerd.commands.plan import plan
from runnerd.commands.serve import serve
from runnerd.commands.status import status
from runnerd.commands.top import top
from runnerd.errors import ConfigError, LoadError
from runnerd.harmless import harmless

CLICK_USAGE = 2  # what the parser exits with; sysexits.h has a number of its own for it

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes and colours are for people; they would also cost the import of Rich.
    rich_markup_mode="rich" if sys.stderr.isatty() else None,
)
app.command()(serve)
app.command()(generate)
app.command()(embed)
app.command()(plan)
app.command()(status)
app.command()(top)
app.command()(demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"runnerd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None:
    """Run one GGUF model for many clients at once."""


def main() -> None:
    """Run the command that the arguments name; never returns."""
    try:
        app(prog_name="runnerd")
    except SystemExit as err:
        sys.exit(USAGE if err.code == CLICK_USAGE else err.code)
    except (CommandFailed, ConfigError, LoadError) as err:
        if str(err):
            with suppress(OSError):  # a terminal that has gone: the status must do
                typer.echo(f"runnerd: {harmless(str(err))}", err=True)
        sys.exit(err.exit_code)
