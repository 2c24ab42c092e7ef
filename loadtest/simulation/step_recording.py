"""Real steps of a real engine, and the step times that are fitted to them.

The engine has one thread, whose CPU time counts: that is what a step takes on a core of its own,
whatever else the machine does meanwhile.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from time import thread_time

from loadtest.console import Tell
from loadtest.simulation.step_times import StepSize, StepTimes, fit, size_of
from runnerd.core.batch import Sampling
from runnerd.core.batcher import Batcher
from runnerd.core.edits import KVRemove
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import Options, admit
from runnerd.engine import open_engine
from runnerd.engine.base import Engine, EngineConfig, run_step

Shape = tuple[int, int]
N_SLOTS, N_CTX = 16, 2048
SHAPES: tuple[Shape, ...] = ((1, 16), (1, 1200), (2, 400), (4, 64), (8, 150), (16, 16), (16, 100))
"""Streams, and prompt tokens of each."""

N_GENERATED = 8
N_TURNS = 2  # of all shapes; the faster step of a size is the one that was disturbed less
PATIENT_S = 3600.0  # target ITL: prompts are evaluated at once


def record_steps(model: Path, tell: Tell) -> StepTimes:
    """Load a model, run it through the shapes, and fit step times to what its steps took."""
    config = EngineConfig(model=str(model), n_slots=N_SLOTS, n_ctx=N_CTX, n_threads=1, kv="split")
    engine = open_engine(config, lambda _phase, _fraction: True)
    try:
        return record(engine, SHAPES, model.name, tell)
    finally:
        engine.close()


def record(engine: Engine, shapes: Sequence[Shape], name: str, tell: Tell) -> StepTimes:
    """Run an engine through shapes that its slots can hold, and fit step times to its steps."""
    seconds: dict[StepSize, float] = {}
    for n_turn in range(N_TURNS):
        for shape in shapes:
            _record(engine, shape, Random(f"{n_turn} {shape}"), seconds)
        tell(f"turn {n_turn + 1} of {N_TURNS}: {len(seconds)} sizes of steps")
    about = f"{name}, fitted to {len(seconds)} sizes of steps"
    return fit([*seconds], [*seconds.values()], about)


def _record(engine: Engine, shape: Shape, rng: Random, seconds: dict[StepSize, float]) -> None:
    """Generate a little with so many streams, and keep the least time of each size of step."""
    batcher = Batcher(engine.limits, engine, PATIENT_S)
    n_streams, n_prompt = shape
    options = Options(max_tokens=N_GENERATED, sampling=Sampling(ignore_end=True))
    for seq_id in range(n_streams):
        inputs = tuple(rng.choices(range(engine.model.n_vocab // 2), k=n_prompt))
        batcher.submit(admit(seq_id, Prompt(inputs), options, engine.limits, 0.0))
    while (step := batcher.plan(0.0)) is not None:
        started_s = thread_time()
        result = run_step(engine, step)
        elapsed_s = thread_time() - started_s
        batcher.commit(step, result, 0.0, elapsed_s)
        size = size_of(step)
        seconds[size] = min(elapsed_s, seconds.get(size, elapsed_s))
    if (rest := batcher.plan_edits()) is not None:
        batcher.commit(rest, run_step(engine, rest), 0.0, 0.0)
    engine.apply(tuple(KVRemove(slot_id, 0) for slot_id in range(engine.limits.n_slots)))
