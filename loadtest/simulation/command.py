"""The commands that simulate the core, and that record what a simulation goes by."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from loadtest.console import exit_if_missed, show, tell
from loadtest.options import AsJson, Model, Seed
from loadtest.simulation.step_recording import record_steps
from loadtest.simulation.summary import CPU_LOAD, GPU_LOAD, Simulated, simulate
from loadtest.simulation.text import simulated_text
from runnerd.models import resolve_model


def simulate_command(
    requests: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="To the GPU; a twentieth to the CPU.")
    ] = GPU_LOAD.n_requests,
    seed: Seed = GPU_LOAD.seed,
    as_json: AsJson = False,
) -> None:
    """Run the core on step times of a GPU and of a CPU: scheduling cost, waits, fairness."""
    loads = (
        replace(GPU_LOAD, n_requests=requests, seed=seed),
        replace(CPU_LOAD, n_requests=max(1, requests // 20), seed=seed),
    )
    outcomes: list[Simulated] = []
    for load in loads:
        tell(f"{load.n_requests} requests over {load.n_slots} slots; steps: {load.times.about}")
        outcomes.append(simulate(load))
    show(outcomes, simulated_text(outcomes), as_json)
    exit_if_missed([bar for each in outcomes for bar in each.bars])


def record_steps_command(model: Model = "smollm2") -> None:
    """Run a model through steps of many sizes, and print the step times that fit them."""
    times = record_steps(Path(resolve_model(model)), tell)
    print(msgspec.json.encode(times).decode())
