"""The decode loop: plan, run a step on the engine's thread, commit, tell the listeners.

The runner is the sole owner of batcher and engine. While a step runs, the event loop sends
what the last one gave, tokenizes and admits. Nothing that a client does is waited for here.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeVar

import anyio
import structlog
from anyio import to_thread
from anyio.lowlevel import checkpoint

from runnerd.config import Config
from runnerd.core.batch import Step, StepResult
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options, Sequence, admit
from runnerd.engine.base import Engine, run_step
from runnerd.engine_thread import EngineThread
from runnerd.errors import (
    ConfigError,
    EngineBroken,
    EngineFailed,
    LoadError,
    LoadFailed,
    Overloaded,
    RequestError,
    ShuttingDown,
)
from runnerd.figures import Figures
from runnerd.loading import Loader, Loading
from runnerd.step_watch import StepWatch
from runnerd_protocol.messages import DaemonState

log = structlog.get_logger()

Listener = Callable[[Emission], None]
T = TypeVar("T")

GATHER_TURNS = 4  # of the event loop after idling, so that requests sent together start together


class Runner:
    """Runs one engine for many sequences, from load to close."""

    def __init__(self, config: Config, load: Loader) -> None:
        self.config = config
        self.state: DaemonState = "starting"
        self.engine: Engine | None = None
        self.batcher: Batcher | None = None
        self.figures = Figures(monotonic())
        self.changed = anyio.Event()
        self._loading = Loading(load, self._tell_change)
        self._error: LoadError | ConfigError | None = None
        self._thread: EngineThread | None = None
        self._reading = anyio.Lock()  # held by who reads the vocabulary in a thread
        self._wake = anyio.Event()
        self._step = StepWatch(config.step_timeout_s, self._tell_change)
        self._is_stopping = False
        self._n_preparing = 0
        self._n_sequences = 0
        self._listeners: dict[int, tuple[Sequence, Listener]] = {}

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load the model and run steps until `stop`, with nothing left in flight.

        The engine stays open for who tokenizes, until `close`.

        Raises:
            LoadError, ConfigError: there is no engine; whoever waited for it has been told.
            EngineBroken: the engine failed; so were all sequences.
        """
        self._thread = EngineThread()
        engine, batcher = await self._open(self._thread)
        error: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._step.run)
            try:
                await self._run_steps(self._thread, engine, batcher)
            except Exception as err:  # to be raised as it is, not as one of a group
                error = err
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error
        if self.state != "failed":
            self._set_state("stopped")

    async def close(self) -> None:
        """Free the engine after `run`, once no thread reads its vocabulary any more.

        A broken engine is left to the process's end.
        """
        if self._thread is None:
            return
        if self.state == "stopped" and self.engine is not None:
            async with self._reading:
                engine, self.engine = self.engine, None
                await self._thread.call(engine.close)
        self._thread.close()

    async def _open(self, thread: EngineThread) -> tuple[Engine, Batcher]:
        self._set_state("loading")
        try:
            engine = await self._loading.run(thread, self.config.engine)
            batcher = Batcher(engine.limits, engine, self.config.target_itl_ms / 1e3)
        except (LoadError, ConfigError) as err:
            self._end_load(err)
            raise
        except Exception:
            self._end_load(LoadError("an internal error"))
            raise
        self.engine, self.batcher = engine, batcher
        if not self._is_stopping:
            self._set_state("ready")
        self._loading.end()
        return engine, batcher

    def _end_load(self, err: LoadError | ConfigError) -> None:
        """Tell those who wait for the engine that there will be none."""
        self._error = err
        self._set_state("failed" if err.exit_code else "stopped")
        self._loading.end()

    async def _run_steps(self, thread: EngineThread, engine: Engine, batcher: Batcher) -> None:
        try:
            while True:
                step = batcher.plan(monotonic())
                if step is None:
                    if self._is_stopping and not batcher.seq_ids:
                        return
                    await self._rest()
                    continue
                started_at = monotonic()
                self._step.begin(started_at)
                try:
                    result = await thread.call(partial(run_step, engine, step))
                finally:
                    self._step.end()
                now = monotonic()
                if self.state == "failed":
                    return  # given up meanwhile: everybody has been told
                self._tell(self._record(batcher, step, result, now, now - started_at))
        except BaseException as err:
            self.give_up(str(err) if isinstance(err, EngineBroken) else "the decode loop has ended")
            raise

    async def _rest(self) -> None:
        """Wait until there may be something to do."""
        self._step.rest()
        await self._wake.wait()
        self._wake = anyio.Event()
        for _ in range(GATHER_TURNS):
            await checkpoint()

    def _record(
        self, batcher: Batcher, step: Step, result: StepResult, now: float, elapsed_s: float
    ) -> list[Emission]:
        self.figures.count_step(len(result.sampled), now, elapsed_s)
        if result.n_batches == len(step.batches):
            return batcher.commit(step, result, now, elapsed_s)
        log.debug("step.backed_off", step=step.number, n_rows=step.n_rows)
        return batcher.back_off(step, result, now)

    def _tell(self, emissions: list[Emission]) -> None:
        """Hand what sequences have to say to their listeners, which never wait."""
        for emission in emissions:
            seq_id = emission.sequence.seq_id
            if emission.token is not None:
                self.figures.n_generated_tokens += 1
            if emission.ending is None:
                _, listener = self._listeners[seq_id]
            else:
                _, listener = self._listeners.pop(seq_id)
            listener(emission)

    def give_up(self, cause: str) -> None:
        """Fail every sequence now, whatever the step in progress may still be doing."""
        self._is_stopping = True
        self._set_state("failed")
        self._loading.stop()
        self._wake.set()
        try:
            if self.batcher is not None:
                self.batcher.in_flight = None
                for seq_id in self.batcher.seq_ids:
                    self.end(seq_id, EngineFailed(cause))
        finally:
            self._fail_rest(EngineFailed(cause))

    def _fail_rest(self, error: EngineFailed) -> None:
        """Fail those whose end was lost between batcher and listener, by an error of either."""
        while self._listeners:
            _, (sequence, listener) = self._listeners.popitem()
            try:
                listener(Emission(sequence, "", ending=error))
            except Exception:
                log.exception("sequence.lost", seq_id=sequence.seq_id)

    def stop(self) -> None:
        """Take no more requests, refuse those that wait, let running ones finish."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self.state != "failed":
            self._set_state("draining")
        if self.batcher is not None:
            for sequence in tuple(self.batcher.waiting):
                self.end(sequence.seq_id, ShuttingDown("the daemon is shutting down"))
        self._loading.stop()  # to refuse those who wait for the model, not only once it is there
        self._wake.set()

    def cancel_all(self) -> None:
        """End every sequence as cancelled: the time for draining is over."""
        for seq_id in () if self.batcher is None else self.batcher.seq_ids:
            self.end(seq_id, "cancelled")

    def _set_state(self, state: DaemonState) -> None:
        self.state = state
        self._tell_change()

    def _tell_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    # --- requests --------------------------------------------------------------------------

    def take_place(self) -> int:
        """Hold a place in the queue for a request, until `leave_place`; return how many are ahead.

        Raises:
            Overloaded: the queue is full.
            LoadFailed, ShuttingDown: nothing is served any more.
        """
        if self._is_stopping or self._error is not None:
            raise self._refusal()
        n_waiting, max_queue = self._n_waiting(1), self.config.max_queue
        if n_waiting > max_queue:
            raise Overloaded(
                f"{n_waiting - 1} requests are waiting, the queue holds {max_queue}",
                n_waiting=n_waiting - 1,
                max_queue=max_queue,
            )
        self._n_preparing += 1
        return max(0, n_waiting - 1)

    def leave_place(self) -> None:
        """Give a place back: its request is submitted, or will not be."""
        self._n_preparing -= 1

    async def loaded(self) -> Engine:
        """Wait for the engine, behind those who have waited longer. To be used at once.

        Raises:
            LoadFailed: it could not be loaded.
            ShuttingDown: there will be none, or none any more.
        """
        await self._loading.over()
        if self.engine is None or self.state in ("stopped", "failed"):
            raise self._refusal()
        return self.engine

    async def read_vocabulary(self, function: Callable[[Engine], T], *, is_long: bool) -> T:
        """Wait for the engine, then tokenize or the like.

        What is long, and would keep everybody waiting, runs in a thread: one for all.

        Raises:
            RequestError: as `loaded`, and what the function raises.
        """
        engine = await self.loaded()
        if not is_long:
            return function(engine)
        async with self._reading:
            return await to_thread.run_sync(function, await self.loaded())

    def submit(self, prompt: Prompt, options: Options, listener: Listener) -> int:
        """Queue a request; its listener hears of every token and of the end.

        Raises:
            RequestError: it cannot be served.
        """
        if self._is_stopping or self.batcher is None:
            raise self._refusal()
        seq_id = self._n_sequences + 1
        sequence = admit(seq_id, prompt, options, self.batcher.limits, monotonic())
        self.batcher.submit(sequence)
        self._n_sequences = seq_id
        self._listeners[seq_id] = sequence, listener
        self._wake.set()
        return seq_id

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; one that has ended is left alone."""
        if self.batcher is not None:
            self._tell(self.batcher.end(seq_id, ending))
            self._wake.set()

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Leave a sequence out of steps while its client does not read."""
        if self.batcher is not None:
            self.batcher.pause(seq_id, paused=paused)
            self._wake.set()

    def _refusal(self) -> RequestError:
        if self._error is not None and self._error.exit_code:
            return LoadFailed(f"the model could not be loaded: {self._error}")
        return ShuttingDown("the daemon is shutting down")

    # --- how it is doing -------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether no more requests are taken."""
        return self._is_stopping

    @property
    def load_phase(self) -> str:
        """What the load is doing, or did last."""
        return self._loading.phase

    @property
    def load_fraction(self) -> float:
        """How far the load's phase is."""
        return self._loading.fraction

    @property
    def n_waiting(self) -> int:
        """Requests queued or in preparation that no free slot is about to take."""
        return self._n_waiting(0)

    def _n_waiting(self, n_more: int) -> int:
        """Count as `n_waiting`, with so many more; until the model is there all slots are free."""
        n_more += self._n_preparing
        if self.batcher is None:
            return max(0, n_more - self.config.engine.n_slots)
        return self.batcher.n_waiting(n_more)

    @property
    def step_age_s(self) -> float:
        """Age of the step in progress; 0 when there is none."""
        return self._step.age_s

    @property
    def health(self) -> DaemonState:
        """The state, or `stalled` when the step in progress has taken too long."""
        return "stalled" if self._step.is_late else self.state
