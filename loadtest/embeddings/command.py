"""The command that measures embeddings."""

from pathlib import Path
from typing import Annotated

import typer

from loadtest.console import show, wait
from loadtest.embeddings.measuring import measure_embeddings
from loadtest.embeddings.text import embedding_text
from loadtest.options import AsJson, MaxTokens, PromptTokens, Rounds, Seed, Streams, TimeLimit
from loadtest.streams.recording import Load


def embeddings_command(
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
    load = Load(
        n_streams=streams,
        n_prompt=prompt_tokens,
        max_tokens=max_tokens,
        n_rounds=rounds,
        seed=seed,
    )
    report = wait(lambda: measure_embeddings(socket, load, inputs, longest), time_limit)
    show(report, embedding_text(report), as_json)
