"""`python -m loadtest COMMAND`; exit status 1: a bar was missed, or the load failed."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from loadtest.bars import measure_bars
from loadtest.compare_command import compare_command
from loadtest.console import FAILED, exit_if_missed, show, tell, wait
from loadtest.embeddings import embedding_text, measure_embeddings
from loadtest.health import measure_health
from loadtest.images import ImageLoad, measure_images
from loadtest.measure import Report
from loadtest.options import (
    MOST_STREAMS,
    AsJson,
    MaxTokens,
    Model,
    PromptTokens,
    Rounds,
    Seed,
    Streams,
    TimeLimit,
)
from loadtest.peers.command import peers
from loadtest.prompts import PromptTooShort
from loadtest.raw import RawFailed, run_raw
from loadtest.recording import Load, Setup
from loadtest.run import run_socket
from loadtest.sampling import measure_sampling
from loadtest.simulate_command import record_steps_command, simulate_command
from loadtest.soak_command import soak
from loadtest.tables import health_text, image_text, outcome_text, report_text, sampling_text
from loadtest.toy import image_setup, write_toy
from loadtest.turns import run_engine_free
from runnerd.client import ClientError
from runnerd.errors import ModelMissing
from runnerd.models import resolve_model

USAGE = 64  # sysexits.h; the parser's own is 2
CLICK_USAGE = 2
EXPECTED = (ClientError, ModelMissing, OSError, PromptTooShort, RawFailed)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Put a daemon under load, and measure it against the bare decode loop.",
)
app.command()(soak)
app.command("compare")(compare_command)
app.command()(peers)
app.command("simulate")(simulate_command)
app.command("record-steps")(record_steps_command)


@app.command()
def run(
    socket: Annotated[Path | None, typer.Option(help="Where the daemon listens.")] = None,
    engine_free: Annotated[
        bool,
        typer.Option("--engine-free", help="Start a daemon whose engine costs next to nothing."),
    ] = False,
    streams: Streams = 4,
    prompt_tokens: PromptTokens = 128,
    max_tokens: MaxTokens = 64,
    rounds: Rounds = 3,
    seed: Seed = 1,
    connections: Annotated[int, typer.Option(min=1, max=MOST_STREAMS)] = 1,
    time_limit: TimeLimit = 600.0,
    as_json: AsJson = False,
) -> None:
    """Measure a daemon: the one at --socket, or one without an engine."""
    if (socket is None) != engine_free:
        raise typer.BadParameter("give either --socket or --engine-free")
    load = _load(streams, prompt_tokens, max_tokens, rounds, seed)
    if socket is None:
        report = wait(lambda: run_engine_free(load), time_limit)
    else:
        report = wait(lambda: run_socket(socket, load, connections), time_limit)
    _print_report(report, as_json)


@app.command()
def raw(
    model: Model,
    streams: Streams = 4,
    prompt_tokens: PromptTokens = 128,
    max_tokens: MaxTokens = 64,
    rounds: Rounds = 3,
    seed: Seed = 1,
    ctx: Annotated[int, typer.Option(min=0, help="Context of each stream; as `serve`.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Tokens per llama_decode.")] = 2048,
    ubatch: Annotated[int, typer.Option(min=1, help="Tokens per pass within one.")] = 512,
    threads: Annotated[int, typer.Option(min=0, help="0: one per core.")] = 0,
    kv: Annotated[Literal["split", "unified"], typer.Option(help="As `serve`.")] = "split",
    flash_attn: Annotated[Literal["auto", "on", "off"], typer.Option(help="As `serve`.")] = "auto",
    time_limit: TimeLimit = 600.0,
    as_json: AsJson = False,
) -> None:
    """Measure the bare loop of llama_decode and argmax: the limit."""
    load = _load(streams, prompt_tokens, max_tokens, rounds, seed)
    setup = Setup(
        model=resolve_model(model),
        n_ctx=ctx,
        n_batch=batch,
        n_ubatch=ubatch,
        n_threads=threads,
        kv=kv,
        flash_attn=flash_attn,
    )
    _print_report(wait(lambda: run_raw(setup, load), time_limit), as_json)


@app.command()
def bars(
    model: Model,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Pairs of turns.")] = 3,
    time_limit: TimeLimit = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Measure daemon and bare loop in turns, and say which bars are missed."""
    path = resolve_model(model)
    outcome = wait(lambda: measure_bars(path, rounds, tell), time_limit)
    show(outcome, outcome_text(outcome), as_json)
    exit_if_missed(outcome.missed)


@app.command()
def sampling(
    model: Annotated[
        str | None, typer.Option(help="Generate with it, too: a GGUF file, or 'smollm2'.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Pairs of turns.")] = 3,
    threads: Annotated[int, typer.Option(min=0, help="0: one per core.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure what picking tokens costs, and say which bars are missed."""
    path = None if model is None else resolve_model(model)
    outcome = measure_sampling(path, rounds, threads, tell)
    show(outcome, sampling_text(outcome), as_json)
    exit_if_missed(outcome.missed)


@app.command()
def embeddings(
    socket: Annotated[Path, typer.Option(help="Where the daemon listens.")],
    inputs: Annotated[int, typer.Option(min=1, max=4096, help="In one request.")] = 64,
    longest: Annotated[int, typer.Option(min=1, max=2**16, help="Tokens of an input.")] = 128,
    streams: Streams = 4,
    prompt_tokens: PromptTokens = 32,
    max_tokens: MaxTokens = 64,
    rounds: Rounds = 3,
    seed: Seed = 1,
    time_limit: TimeLimit = 600.0,
    as_json: AsJson = False,
) -> None:
    """Measure embeddings: in one request, one by one, and beside generation."""
    load = _load(streams, prompt_tokens, max_tokens, rounds, seed)
    report = wait(lambda: measure_embeddings(socket, load, inputs, longest), time_limit)
    show(report, embedding_text(report), as_json)


@app.command()
def images(
    model: Model = "smollm2",
    projector: Annotated[
        Path | None,
        typer.Option(help="The model's projector; without, one is made that names colours."),
    ] = None,
    heavy: Annotated[
        bool, typer.Option("--heavy", help="Make one that takes as long as real ones.")
    ] = False,
    requests: Annotated[int, typer.Option(min=20, max=100_000, help="To look for leaks.")] = 1000,
    rounds: Rounds = 3,
    time_limit: TimeLimit = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Measure images beside text, again and again, and say which bars are missed."""
    path = resolve_model(model)
    load = ImageLoad(n_rounds=rounds, n_requests=requests)
    with image_setup(path, projector, is_heavy=heavy) as setup:
        outcome = wait(lambda: measure_images(setup, load, tell), time_limit)
    show(outcome, image_text(outcome), as_json)
    exit_if_missed(outcome.missed)


@app.command()
def health(
    model: Model = "smollm2",
    rounds: Rounds = 3,
    time_limit: TimeLimit = 600.0,
    as_json: AsJson = False,
) -> None:
    """Measure how soon a daemon that works says how it is, and whether that is soon enough."""
    path = resolve_model(model)
    with image_setup(path, None, is_heavy=True) as setup:
        outcome = wait(lambda: measure_health(setup, rounds, tell), time_limit)
    show(outcome, health_text(outcome), as_json)
    exit_if_missed(outcome.missed)


@app.command()
def toy(folder: Annotated[Path, typer.Argument(help="Where to write them.")]) -> None:
    """Write a projector for SmolLM2 that names colours, and pictures to try it with."""
    for path in write_toy(Path(resolve_model("smollm2")), folder):
        print(path)


def _load(n_streams: int, n_prompt: int, max_tokens: int, n_rounds: int, seed: int) -> Load:
    return Load(
        n_streams=n_streams, n_prompt=n_prompt, max_tokens=max_tokens, n_rounds=n_rounds, seed=seed
    )


def _print_report(report: Report, as_json: bool) -> None:
    show(report, report_text(report), as_json)


def _first(group: ExceptionGroup) -> Exception:
    """Return an error of those that streams side by side have failed with."""
    err = group.exceptions[0]
    return _first(err) if isinstance(err, ExceptionGroup) else err


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
        tell(str(_first(failed)))
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
