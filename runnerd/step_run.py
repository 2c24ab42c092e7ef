"""A step on the engine's thread, and maybe its successor right behind it.

The decode loop hears of a step when the next one runs already, if it has allowed that.
"""

from time import monotonic

import anyio

from runnerd.core.batch import Step, StepResult
from runnerd.core.successor import successor
from runnerd.engine.base import Engine, run_step
from runnerd.engine_thread import Call


class StepRun(Call[StepResult]):
    """One step. It `took_s`, up to `ended_at`; `following` is the run of its successor.

    That is made where there is an event for its end, `next_done`, which only the event loop can
    make. To take it away again has an effect, or comes too late.
    """

    def __init__(self, engine: Engine, step: Step, done: anyio.Event | None = None) -> None:
        super().__init__(self._run, done)
        self.step = step
        self.following: StepRun | None = None
        self.next_done: anyio.Event | None = None
        self.took_s = self.ended_at = 0.0
        self._engine = engine

    def _run(self) -> StepResult:
        started_at = monotonic()
        result = run_step(self._engine, self.step)
        self.ended_at = monotonic()
        self.took_s = self.ended_at - started_at
        next_done = self.next_done
        if next_done is not None and result.n_batches == len(self.step.batches):
            step = successor(self.step, result.sampled, self._engine.is_end)
            if step is not None:
                self.following = StepRun(self._engine, step, next_done)
        return result
