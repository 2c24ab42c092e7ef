"""The command that soaks a daemon."""

from pathlib import Path
from typing import Annotated

import typer

from loadtest.console import exit_if_missed, show, tell, wait
from loadtest.options import AsJson, Seed, TimeLimit
from loadtest.soak.measuring import LEAST_LOOKS, measure_soak
from loadtest.soak.outcome import SoakLoad
from loadtest.soak.setup import EngineName, soak_setup
from loadtest.soak.text import soak_text


def soak_command(
    model: Annotated[
        str | None,
        typer.Option(help="A GGUF file; else SmolLM2, with an adapter and a projector for it."),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="As `serve`.")] = "llama",
    projector: Annotated[Path | None, typer.Option(help="The model's projector.")] = None,
    requests: Annotated[int, typer.Option(min=2 * LEAST_LOOKS, max=10_000_000)] = 20_000,
    warm_up: Annotated[int, typer.Option(min=0, help="Of them, before growth counts.")] = 2_000,
    connects: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Connections that come and go afterwards.")
    ] = 10_000,
    seed: Seed = 1,
    time_limit: TimeLimit = 7200.0,
    as_json: AsJson = False,
) -> None:
    """Ask a daemon for everything, leave in every way, and look at what is left behind."""
    if warm_up > requests // 2:
        raise typer.BadParameter("at most half of the requests can be the warm-up")
    load = SoakLoad(n_requests=requests, n_warm_up=warm_up, n_connects=connects, seed=seed)
    with soak_setup(engine, model, projector) as setup:
        outcome = wait(lambda: measure_soak(setup, load, tell), time_limit)
    show(outcome, soak_text(outcome), as_json)
    exit_if_missed(outcome.bars)
