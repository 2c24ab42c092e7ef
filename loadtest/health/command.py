"""The command that measures how soon a daemon says how it is."""

from loadtest.console import exit_if_missed, show, tell, wait
from loadtest.health.measuring import measure_health
from loadtest.health.text import health_text
from loadtest.images.setup import image_setup
from loadtest.options import AsJson, Model, Rounds, TimeLimit
from runnerd.models import resolve_model


def health_command(
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
    exit_if_missed(outcome.bars)
