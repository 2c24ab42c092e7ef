"""Passes of embeddings on the engine's thread, beside generation.

While sequences generate, a pass is kept as short as its inputs allow, and the decode loop's
steps get as much time after it as it took. One that nobody waits for any more is stopped.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

import numpy as np

from runnerd.core.budget import MOST_S
from runnerd.embed_queue import EmbeddingQueue, EmbeddingRequest, Pass, Tokens
from runnerd.engine.base import Engine, Pooling
from runnerd.engine_thread import EngineThread
from runnerd.errors import DecodeAborted, EngineFailed, RequestError
from runnerd.figures import Figures
from runnerd.step_watch import StepWatch

FIRST_ROWS = 16  # beside generation, before a pass has been timed
NO_MEMORY = "there is no memory for a pass of embeddings"
NO_NUMBER = "the model gave an embedding that is not finite"
WEIGHT = 0.2  # of the newest measurement, as for steps


class PassBudget:
    """How many rows a pass may have beside generation, from the passes seen so far."""

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self._row_s: float | None = None
        self._pooling: Pooling | None = None

    @property
    def n_rows(self) -> int:
        """Rows of a pass that takes about as long as a step should; an input goes whole anyway."""
        if self._row_s is None:
            return FIRST_ROWS
        return int(self.target_s / max(self._row_s, 1e-9))

    def observe(self, one: Pass, elapsed_s: float) -> None:
        """Learn from a pass that took so long; the first of a pooling also makes a context."""
        if one.pooling != self._pooling:
            self._pooling = one.pooling
            return
        row_s = elapsed_s / one.n_rows
        old = row_s if self._row_s is None else self._row_s
        self._row_s = old + WEIGHT * (row_s - old)


class Embeddings:
    """Runs passes on the engine's thread. `wake` is called when there may be a pass to run."""

    def __init__(
        self,
        engine: Engine,
        thread: EngineThread,
        figures: Figures,
        watch: StepWatch,
        target_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._figures = figures
        self._watch = watch
        self._wake = wake
        self._queue = EmbeddingQueue(engine.model.n_embed)
        self._budget = PassBudget(target_s or MOST_S)
        self._requests: dict[EmbeddingRequest, None] = {}  # in order of arrival
        self._running: Pass | None = None
        self._has_stopped = False
        self._owed_s = 0.0  # to the decode loop, for its steps

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def n_begun(self) -> int:
        """Requests of which something has been taken."""
        return sum(request.n_taken > 0 for request in self._requests)

    @property
    def is_idle(self) -> bool:
        """Whether every request has what it can get."""
        return all(request.is_over for request in self._requests)

    def submit(self, inputs: Sequence[Tokens], pooling: Pooling) -> EmbeddingRequest:
        """Take up a request, of an input or more; it is here until it is dropped."""
        request = EmbeddingRequest(inputs, pooling, self._wake)
        self._requests[request] = None
        self._queue.add(request)
        self._wake()
        return request

    def drop(self, request: EmbeddingRequest) -> None:
        """Let go of a request, whether it has all its results or not."""
        del self._requests[request]
        self._queue.remove(request)
        self._stop_unwanted()
        self._wake()

    def refuse_waiting(self, error: RequestError) -> None:
        """Fail the requests of which nothing has been taken yet."""
        for request in self._requests:
            if request.n_taken == 0:
                self._fail(request, error)

    def fail_all(self, error: RequestError) -> None:
        """Fail every request now."""
        for request in self._requests:
            self._fail(request, error)

    def _fail(self, request: EmbeddingRequest, error: RequestError) -> None:
        self._queue.remove(request)
        request.fail(error)
        self._stop_unwanted()

    def _stop_unwanted(self) -> None:
        """Stop the pass in progress if nobody is there any more to get anything of it."""
        if self._running is None or self._has_stopped:
            return
        owners = self._running.owners
        if all(each.error is not None or each not in self._requests for each in owners):
            self._has_stopped = True
            self._engine.set_abort(True)

    def aim_at(self, target_s: float) -> None:
        """Change how long a pass beside generation should take."""
        self._budget.target_s = target_s or MOST_S

    def give_time(self, elapsed_s: float) -> None:
        """Note that a step has had so much time."""
        self._owed_s = max(0.0, self._owed_s - elapsed_s)

    def forgive(self) -> bool:
        """Owe the steps nothing: there are none to run; return whether anything was owed."""
        was_owed, self._owed_s = self._owed_s > 0.0, 0.0
        return was_owed

    async def run_pass(self, *, is_alone: bool) -> bool:
        """Run a pass if it is time for one and there is anything to run.

        `is_alone`: nothing waits for its end.
        """
        if not is_alone and self._owed_s > 0.0:
            return False
        one = self._queue.take(self._engine.model.n_embed if is_alone else self._budget.n_rows)
        if one is None:
            return False
        started_at = monotonic()
        self._watch.begin(started_at)
        self._running = one
        try:
            vectors = await self._thread.call(partial(self._engine.embed, one.inputs, one.pooling))
        except DecodeAborted:
            return True
        except (EngineFailed, MemoryError) as err:
            failed = err if isinstance(err, EngineFailed) else EngineFailed(NO_MEMORY)
            for owner in dict.fromkeys(one.owners):
                self._fail(owner, failed)
            return True
        finally:
            self._watch.end()
            self._running = None
            if self._has_stopped:
                self._has_stopped = False
                self._engine.set_abort(False)
        elapsed_s = monotonic() - started_at
        self._owed_s = elapsed_s
        self._budget.observe(one, elapsed_s)
        self._figures.n_embedded += len(one.inputs)
        for owner in dict.fromkeys(one.owners):
            given = vectors[[owner is each for each in one.owners]]
            if np.isfinite(given).all():
                owner.give(given)
            else:
                self._fail(owner, EngineFailed(NO_NUMBER))
        return True
