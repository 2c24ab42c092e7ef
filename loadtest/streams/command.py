"""The commands that put equal streams on a daemon, on the bare loop, and on both by turns."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from loadtest.console import exit_if_missed, show, tell, wait
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
from loadtest.streams.against_loop import measure_bars
from loadtest.streams.daemons import run_engine_free
from loadtest.streams.raw import run_raw
from loadtest.streams.recording import Load, ModelSetup
from loadtest.streams.run import run_socket
from loadtest.streams.text import loop_text, report_text
from runnerd.models import resolve_model


def run_command(
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
    load = Load(
        n_streams=streams,
        n_prompt=prompt_tokens,
        max_tokens=max_tokens,
        n_rounds=rounds,
        seed=seed,
    )
    if socket is None:
        report = wait(lambda: run_engine_free(load), time_limit)
    else:
        report = wait(lambda: run_socket(socket, load, connections), time_limit)
    show(report, report_text(report), as_json)


def raw_command(
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
    flash_attn: Annotated[
        Literal["auto", "on", "off"], typer.Option(help="Flash attention; auto is llama.cpp's.")
    ] = "auto",
    time_limit: TimeLimit = 600.0,
    as_json: AsJson = False,
) -> None:
    """Measure the bare loop of llama_decode and argmax: the limit."""
    load = Load(
        n_streams=streams,
        n_prompt=prompt_tokens,
        max_tokens=max_tokens,
        n_rounds=rounds,
        seed=seed,
    )
    setup = ModelSetup(
        model=resolve_model(model),
        n_ctx=ctx,
        n_batch=batch,
        n_ubatch=ubatch,
        n_threads=threads,
        kv=kv,
        flash_attn=flash_attn,
    )
    report = wait(lambda: run_raw(setup, load), time_limit)
    show(report, report_text(report), as_json)


def bars_command(
    model: Model,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Pairs of turns.")] = 3,
    time_limit: TimeLimit = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Measure daemon and bare loop in turns, and say which bars are missed."""
    path = resolve_model(model)
    outcome = wait(lambda: measure_bars(path, rounds, tell), time_limit)
    show(outcome, loop_text(outcome), as_json)
    exit_if_missed(outcome.bars)
