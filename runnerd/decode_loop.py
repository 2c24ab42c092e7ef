"""The decode loop: plan, run a step on the engine's thread, commit, tell the listeners.

While a step runs, the event loop sends what the last one gave, tokenizes and admits. Nothing
that a client does is waited for here.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic

import anyio
import structlog
from anyio.lowlevel import checkpoint

from runnerd.audience import Audience, Listener
from runnerd.core.batch import Step, StepResult
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.embedding import Embeddings
from runnerd.engine.base import Engine, run_step
from runnerd.engine_thread import EngineThread
from runnerd.errors import EngineBroken, EngineFailed, RequestError
from runnerd.figures import Figures
from runnerd.media.encoding import Encoding
from runnerd.slot_report import SlotReport
from runnerd.step_watch import Pulse, StepWatch

log = structlog.get_logger()

GATHER_TURNS = 16  # of the event loop without a newcomer: what was sent together starts together


class DecodeLoop:
    """Runs a batcher's steps. `fail` is called with the cause if that cannot go on.

    `make_encoding` is given where the model reads images; it takes what wakes the loop.
    """

    def __init__(
        self,
        batcher: Batcher,
        engine: Engine,
        thread: EngineThread,
        figures: Figures,
        watch: StepWatch,
        fail: Callable[[str], None],
        target_itl_s: float,
        make_encoding: Callable[[Callable[[], None]], Encoding] | None,
    ) -> None:
        self._batcher = batcher
        self._engine = engine
        self._thread = thread
        self._figures = figures
        self._watch = watch
        self._fail = fail
        self.pulse = Pulse()
        self.line_moved = anyio.Event()  # set, and made anew, when the queue is another
        self._wake = anyio.Event()
        self.embeddings = Embeddings(engine, thread, figures, watch, target_itl_s, self.wake)
        self.encoding = None if make_encoding is None else make_encoding(self.wake)
        self._error: Exception | None = None
        self._is_stopping = False
        self._has_given_up = False
        self._has_aborted = False
        self._audience = Audience(figures)
        self.report = SlotReport(batcher, self._audience.request_id_of)

    async def run(self) -> None:
        """Run steps until `stop`, with nothing left in flight, or `give_up`.

        Raises:
            EngineBroken: the engine failed; so were all sequences.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch.run)
            if self.encoding is not None:
                tasks.start_soon(self.encoding.watch.run)
                tasks.start_soon(self._run_encoding, self.encoding)
            try:
                await self._run_steps()
            except Exception as err:  # to be raised as it is, not as one of a group
                self._error = err
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error

    async def _run_encoding(self, encoding: Encoding) -> None:
        try:
            await encoding.run()
        except Exception as err:  # raised by `run`, as soon as no step is in progress
            self._error = err
            cause = str(err) if isinstance(err, EngineBroken) else "images are encoded no more"
            self._fail(cause)

    def wake(self) -> None:
        """Look again whether there is something to do."""
        self._wake.set()

    def submit(self, sequence: Sequence, listener: Listener, request_id: int) -> None:
        """Queue a sequence; its listener hears of every token and of the end."""
        self._batcher.submit(sequence)
        self._audience.add(sequence, listener, request_id)
        self._wake.set()
        self._tell_line()

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; one that has ended is left alone."""
        self._tell(self._batcher.end(seq_id, ending))
        if self._batcher.wants_abort and not self._has_aborted:
            self._has_aborted = True
            self._engine.set_abort(True)
        self._wake.set()
        self._tell_line()

    def n_ahead(self, seq_id: int) -> int | None:
        """Return how many wait before a sequence; None if it has begun, or has ended."""
        return self._batcher.n_ahead(seq_id) if self._audience.waits(seq_id) else None

    def _tell_line(self) -> None:
        self.line_moved.set()
        self.line_moved = anyio.Event()

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Leave a sequence out of steps, or take it up again."""
        self._batcher.pause(seq_id, paused=paused)
        self.report.outdate()
        self._wake.set()

    def aim_at(self, target_itl_s: float) -> None:
        """Change the gap between tokens that prompts and passes must not push beyond."""
        self._batcher.aim_at(target_itl_s)
        self.embeddings.aim_at(target_itl_s)

    def stop(self) -> None:
        """End once every sequence has."""
        self._is_stopping = True
        self._wake.set()

    def give_up(self, cause: str) -> None:
        """Fail every sequence now, whatever the step in progress may still be doing."""
        self._has_given_up = True
        self.stop()
        self._batcher.in_flight = None
        self.embeddings.fail_all(EngineFailed(cause))
        try:
            for seq_id in self._batcher.seq_ids:
                self.end(seq_id, EngineFailed(cause))
        finally:
            self._audience.fail_rest(EngineFailed(cause))

    async def _run_steps(self) -> None:
        batcher, engine = self._batcher, self._engine
        try:
            while True:
                has_passed = await self.embeddings.run_pass(is_alone=not batcher.seq_ids)
                if self._has_given_up:
                    return
                self.pulse.n_beats += has_passed
                step, has_more = self._plan()
                if step is None and has_more:
                    continue
                step = step or batcher.plan_edits()
                if step is None:
                    if self._is_stopping and not batcher.seq_ids and self.embeddings.is_idle:
                        return
                    if not has_passed and not self.embeddings.forgive():
                        await self._rest()
                    continue
                started_at = monotonic()
                self._watch.begin(started_at)
                try:
                    result = await self._thread.call(partial(run_step, engine, step))
                finally:
                    self._watch.end()
                self._resume()
                now = monotonic()
                if self._has_given_up:
                    return  # given up meanwhile: everybody has been told
                self.embeddings.give_time(now - started_at)
                self._tell(self._record(step, result, now, now - started_at))
                self.pulse.n_beats += 1
        except BaseException as err:
            self._fail(str(err) if isinstance(err, EngineBroken) else "the decode loop has ended")
            raise

    def _plan(self) -> tuple[Step | None, bool]:
        """Return the next step, and whether there is more to plan by now."""
        batcher, encoding, n_waiting = self._batcher, self.encoding, len(self._batcher.waiting)
        now = monotonic()
        if encoding is not None:
            self._tell(encoding.settle())
            if batcher.waiting:  # a newcomer's first step takes what is at hand of its images
                batcher.admit(now)
                encoding.look()
        step = batcher.plan(now)
        has_more = encoding is not None and encoding.look()
        if len(batcher.waiting) != n_waiting:
            self._tell_line()
        self._tell(batcher.news())
        return step, has_more

    def _resume(self) -> None:
        """Let decodes run again after one that was to stop."""
        if self._has_aborted:
            self._has_aborted = False
            self._engine.set_abort(False)

    async def _rest(self) -> None:
        """Wait until there may be something to do, and for whoever comes right behind."""
        self._watch.rest()
        self.pulse.is_resting = True
        await self._wake.wait()
        n_here = -1
        while len(self._audience) + len(self.embeddings) > n_here:
            n_here = len(self._audience) + len(self.embeddings)
            self._wake = anyio.Event()
            for _ in range(GATHER_TURNS):
                await checkpoint()
        self.pulse.is_resting = False

    def _record(
        self, step: Step, result: StepResult, now: float, elapsed_s: float
    ) -> list[Emission]:
        if step.batches:
            self._figures.count_step(len(result.sampled), now, elapsed_s)
        if result.is_aborted:
            log.debug("step.aborted", step=step.number, n_rows=step.n_rows)
        if result.is_aborted or result.n_batches == len(step.batches):
            return self._batcher.commit(step, result, now, elapsed_s)
        log.debug("step.backed_off", step=step.number, n_rows=step.n_rows)
        return self._batcher.back_off(step, result, now)

    def _tell(self, emissions: list[Emission]) -> None:
        """Hand on what sequences have to say after whatever has moved them."""
        self.report.outdate()
        self._audience.tell(emissions)
