"""The command that measures sampling."""

from typing import Annotated

import typer

from loadtest.console import exit_if_missed, show, tell
from loadtest.options import AsJson
from loadtest.sampling.measuring import measure_sampling
from loadtest.sampling.text import sampling_text
from runnerd.models import resolve_model


def sampling_command(
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
    exit_if_missed(outcome.bars)
