"""The commands that measure images, and that make what to try them with."""

from pathlib import Path
from typing import Annotated

import typer

from loadtest.console import exit_if_missed, show, tell, wait
from loadtest.images.measuring import ImageLoad, measure_images
from loadtest.images.setup import image_setup
from loadtest.images.text import image_text
from loadtest.options import AsJson, Model, Rounds, TimeLimit
from loadtest.toy import write_toy
from runnerd.models import resolve_model


def images_command(
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
    exit_if_missed(outcome.bars)


def toy_command(folder: Annotated[Path, typer.Argument(help="Where to write them.")]) -> None:
    """Write a projector for SmolLM2 that names colours, and pictures to try it with."""
    for path in write_toy(Path(resolve_model("smollm2")), folder):
        print(path)
