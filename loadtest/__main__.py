"""`python -m loadtest COMMAND`; exit status 1: a bar was missed, or the load failed."""

import sys

import typer

from loadtest.comparison.command import compare_command
from loadtest.comparison.peers.command import peers_command
from loadtest.console import FAILED, first_of, tell
from loadtest.embeddings.command import embeddings_command
from loadtest.health.command import health_command
from loadtest.images.command import images_command, toy_command
from loadtest.prompts import PromptTooShort
from loadtest.sampling.command import sampling_command
from loadtest.simulation.command import record_steps_command, simulate_command
from loadtest.soak.command import soak_command
from loadtest.streams.command import bars_command, raw_command, run_command
from loadtest.streams.raw import RawFailed
from runnerd.client import ClientError
from runnerd.errors import ModelMissing

USAGE = 64  # sysexits.h; the parser's own is 2
CLICK_USAGE = 2
EXPECTED = (ClientError, ModelMissing, OSError, PromptTooShort, RawFailed)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Put a daemon under load, and measure it against the bare loop and against others.",
)
app.command("run")(run_command)
app.command("raw")(raw_command)
app.command("bars")(bars_command)
app.command("sampling")(sampling_command)
app.command("embeddings")(embeddings_command)
app.command("images")(images_command)
app.command("health")(health_command)
app.command("soak")(soak_command)
app.command("compare")(compare_command)
app.command("peers")(peers_command)
app.command("simulate")(simulate_command)
app.command("record-steps")(record_steps_command)
app.command("toy")(toy_command)


def main() -> None:
    """Run the command that the arguments name; never returns."""
    try:
        app(prog_name="loadtest")
    except SystemExit as err:
        sys.exit(USAGE if err.code == CLICK_USAGE else err.code)
    except TimeoutError:
        tell("not done within the time limit")
    except EXPECTED as err:
        tell(str(err))
    except ExceptionGroup as group:
        failed, others = group.split(EXPECTED)
        if failed is None or others is not None:
            raise
        tell(str(first_of(failed)))
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
