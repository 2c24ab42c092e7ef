"""`python -m loadtest run | raw | bars | embeddings`; exit status 1: a bar missed, or failed."""

import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import anyio
import msgspec
import typer

from loadtest.bars import Bar, measure_bars
from loadtest.embeddings import embedding_text, measure_embeddings
from loadtest.measure import Report
from loadtest.prompts import PromptTooShort
from loadtest.raw import RawFailed, run_raw
from loadtest.recording import Load, Setup
from loadtest.run import run_socket
from loadtest.sampling import measure_sampling
from loadtest.tables import outcome_text, report_text, sampling_text
from loadtest.turns import run_engine_free
from runnerd.client import ClientError
from runnerd.errors import ModelMissing
from runnerd.models import resolve_model

FAILED = 1
USAGE = 64  # sysexits.h; the parser's own is 2
CLICK_USAGE = 2
MOST_STREAMS = 256  # llama.cpp's limit on slots

T = TypeVar("T")

Streams = Annotated[int, typer.Option(min=1, max=MOST_STREAMS, help="At the same time.")]
PromptTokens = Annotated[int, typer.Option(min=1, max=2**20, help="Of each prompt.")]
MaxTokens = Annotated[int, typer.Option(min=1, max=2**20, help="Generated per stream.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="Each with prompts of its own.")]
Seed = Annotated[int, typer.Option(help="Of the prompts.")]
Model = Annotated[str, typer.Option(help="A GGUF file, or the alias 'smollm2'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TimeLimit = Annotated[float, typer.Option(min=1.0, max=86400.0, help="Seconds until giving up.")]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Put a daemon under load, and measure it against the bare decode loop.",
)


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
        report = _wait(lambda: run_engine_free(load), time_limit)
    else:
        report = _wait(lambda: run_socket(socket, load, connections), time_limit)
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
    _print_report(_wait(lambda: run_raw(setup, load), time_limit), as_json)


@app.command()
def bars(
    model: Model,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Pairs of turns.")] = 3,
    time_limit: TimeLimit = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Measure daemon and bare loop in turns, and say which bars are missed."""
    path = resolve_model(model)
    outcome = _wait(lambda: measure_bars(path, rounds, _tell), time_limit)
    _print(outcome, outcome_text(outcome), as_json)
    _exit_if_missed(outcome.missed)


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
    outcome = measure_sampling(path, rounds, threads, _tell)
    _print(outcome, sampling_text(outcome), as_json)
    _exit_if_missed(outcome.missed)


def _exit_if_missed(missed: Sequence[Bar]) -> None:
    for bar in missed:
        _tell(f"missed: {bar.name}: {bar.value:.3f}, limit {bar.sign} {bar.limit:g}")
    if missed:
        raise typer.Exit(FAILED)


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
    report = _wait(lambda: measure_embeddings(socket, load, inputs, longest), time_limit)
    _print(report, embedding_text(report), as_json)


def _load(n_streams: int, n_prompt: int, max_tokens: int, n_rounds: int, seed: int) -> Load:
    return Load(
        n_streams=n_streams, n_prompt=n_prompt, max_tokens=max_tokens, n_rounds=n_rounds, seed=seed
    )


def _wait(measure: Callable[[], Coroutine[None, None, T]], time_limit_s: float) -> T:
    async def measure_in_time() -> T:
        with anyio.fail_after(time_limit_s):
            return await measure()

    return anyio.run(measure_in_time)


def _print_report(report: Report, as_json: bool) -> None:
    _print(report, report_text(report), as_json)


def _print(measured: msgspec.Struct, text: str, as_json: bool) -> None:
    print(msgspec.json.encode(measured).decode() if as_json else text)


def _tell(line: str) -> None:
    print(f"loadtest: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the command that the arguments name; never returns."""
    try:
        app(prog_name="loadtest")
    except SystemExit as err:
        sys.exit(USAGE if err.code == CLICK_USAGE else err.code)
    except TimeoutError:
        _tell("not done within the time limit")
    except (ClientError, ModelMissing, OSError, PromptTooShort, RawFailed) as err:
        _tell(str(err))
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
