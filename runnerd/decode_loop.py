"""The decode loop: plan, run a step on the engine's thread, commit.

While a step runs, the event loop tells the listeners what the last one gave, sends it, tokenizes
and admits. Nothing that a client does is waited for here. Where everybody generates, the engine
begins the next step by itself, and what it gave is recorded meanwhile.
"""

from collections.abc import Callable
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
from runnerd.engine.base import Engine
from runnerd.engine_thread import EngineThread
from runnerd.errors import EngineBroken, EngineFailed, RequestError
from runnerd.figures import Figures
from runnerd.media.encoding import Encoding
from runnerd.slot_report import SlotReport
from runnerd.step_run import StepRun
from runnerd.step_watch import Pulse, StepWatch

log = structlog.get_logger()

# Behind a shorter step there is no time to do anything in: two threads of Python would only take
# the interpreter from each other, which costs a tenth of the time (16 streams without an engine).
# Behind one of 0.25 ms (64 of them) it saves a sixth, as no thread waits for another to wake up.
LONG_S = 2e-4
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
        self._run: StepRun | None = None
        self._untold: list[Emission] = []  # the next step does not wait for them to be told
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
        """Look again whether there is something to do, after the step in progress."""
        if self._run is not None:
            self._run.next_done = None
        self._wake.set()

    def submit(self, sequence: Sequence, listener: Listener, request_id: int) -> None:
        """Queue a sequence; its listener hears of every token and of the end."""
        self._batcher.submit(sequence)
        self._audience.add(sequence, listener, request_id)
        self.wake()
        self._tell_line()

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; one that has ended is left alone."""
        self._untold += self._batcher.end(seq_id, ending)
        self._tell()
        if self._batcher.wants_abort and not self._has_aborted:
            self._has_aborted = True
            self._engine.set_abort(True)
        self.wake()
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
        self.wake()

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
            self._tell()
            for seq_id in self._batcher.seq_ids:
                self.end(seq_id, EngineFailed(cause))
        finally:
            self._audience.fail_rest(EngineFailed(cause))

    async def _run_steps(self) -> None:
        batcher, engine = self._batcher, self._engine
        try:
            while True:
                if not self.embeddings.is_idle:
                    self._tell()
                has_passed = await self.embeddings.run_pass(is_alone=not batcher.seq_ids)
                if self._has_given_up:
                    return
                self.pulse.n_beats += has_passed
                step, has_more = self._plan()
                if step is None and has_more:
                    continue
                step = step or batcher.plan_edits()
                if step is None:
                    self._tell()
                    if self._is_stopping and not batcher.seq_ids and self.embeddings.is_idle:
                        return
                    if not has_passed and not self.embeddings.forgive():
                        await self._rest()
                    continue
                self._run = StepRun(engine, step)
                self._thread.begin(self._run)
                if self._is_worth_overlapping:
                    self._run.let_begin()
                await self._follow()
                if self._has_given_up:
                    return  # given up meanwhile: everybody has been told
        except BaseException as err:
            self._fail(str(err) if isinstance(err, EngineBroken) else "the decode loop has ended")
            raise
        finally:
            await self._outlast()

    async def _outlast(self) -> None:
        """Wait for what the engine still runs of steps that are not recorded any more."""
        while self._run is not None:
            with anyio.CancelScope(shield=True):
                await self._run.done.wait()
            self._run = self._run.following

    async def _follow(self) -> None:
        """Record a step that runs, and those that the engine begins behind it."""
        while (run := self._run) is not None:
            self._watch.begin(monotonic())
            try:
                if self._is_worth_overlapping and self._may_run_ahead:
                    run.next_done = anyio.Event()
                self._tell()
                result = await run.wait()
            finally:
                self._watch.end()
            self._run = run.following
            self._resume()
            if self._has_given_up:
                return
            self.embeddings.give_time(run.took_s)
            self._untold += self._record(run, result)
            self.pulse.n_beats += 1

    @property
    def _is_worth_overlapping(self) -> bool:
        return self._figures.step_s >= LONG_S

    @property
    def _may_run_ahead(self) -> bool:
        return self._batcher.may_run_ahead and self.embeddings.is_idle

    def _plan(self) -> tuple[Step | None, bool]:
        """Return the next step, and whether there is more to plan by now."""
        batcher, encoding, n_waiting = self._batcher, self.encoding, len(self._batcher.waiting)
        now = monotonic()
        if encoding is not None:
            self._untold += encoding.settle()
            if batcher.waiting:  # a newcomer's first step takes what is at hand of its images
                batcher.admit(now)
                encoding.look()
        step = batcher.plan(now)
        has_more = encoding is not None and encoding.look()
        if len(batcher.waiting) != n_waiting:
            self._tell_line()
        self._untold += batcher.news()
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

    def _record(self, run: StepRun, result: StepResult) -> list[Emission]:
        step, now, elapsed_s = run.step, run.ended_at, run.took_s
        if step.batches:
            self._figures.count_step(len(result.sampled), now, elapsed_s)
        if run.following is not None:
            return self._batcher.follow(step, result, now, elapsed_s, run.following.step)
        if result.is_aborted:
            log.debug("step.aborted", step=step.number, n_rows=step.n_rows)
        if result.is_aborted or result.n_batches == len(step.batches):
            return self._batcher.commit(step, result, now, elapsed_s)
        log.debug("step.backed_off", step=step.number, n_rows=step.n_rows)
        return self._batcher.back_off(step, result, now)

    def _tell(self) -> None:
        """Hand on what sequences have to say after whatever has moved them."""
        self.report.outdate()
        untold, self._untold = self._untold, []
        self._audience.tell(untold)
