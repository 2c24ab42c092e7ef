"""The decode loop: plan, run a step on the engine's thread, commit, tell the listeners.

The runner is the sole owner of batcher and engine. While a step runs, the event loop sends
what the last one gave, tokenizes and admits. Nothing that a client does is waited for here.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

import anyio
import structlog
from anyio.lowlevel import checkpoint, current_token

from runnerd.config import Config
from runnerd.core.batch import Step, StepResult
from runnerd.core.batcher import Batcher, Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options, admit
from runnerd.engine.base import Engine, EngineConfig, LoadProgress, run_step
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
from runnerd_protocol.messages import DaemonState

log = structlog.get_logger()

Loader = Callable[[EngineConfig, LoadProgress], Engine]
Listener = Callable[[Emission], None]

RATE_WINDOW_S = 5.0  # what "tokens per second" looks back on
GATHER_TURNS = 4  # of the event loop after idling, so that requests sent together start together
PROGRESS_S = 0.05  # load progress is told at most this often, phases and ends always


class Runner:
    """Runs one engine for many sequences, from load to close."""

    def __init__(self, config: Config, load: Loader) -> None:
        self.config = config
        self.state: DaemonState = "starting"
        self.load_phase = ""
        self.load_fraction = 0.0
        self.engine: Engine | None = None
        self.batcher: Batcher | None = None
        self.n_steps = 0
        self.n_requests = 0
        self.n_failed = 0
        self.n_prompt_tokens = 0
        self.n_generated_tokens = 0
        self.step_s = 0.0
        self.step_started_at: float | None = None
        self.changed = anyio.Event()
        self._load = load
        self._error: LoadError | ConfigError | None = None
        self._loaded = anyio.Event()
        self._line = anyio.Lock()  # whoever waits for an event is woken in any order on trio
        self._wake = anyio.Event()
        self._is_stopping = False
        self._n_preparing = 0
        self._listeners: dict[int, Listener] = {}
        self._recent: deque[tuple[float, int]] = deque()

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load the model and run steps until `stop`, with nothing left in flight.

        Raises:
            LoadError, ConfigError: there is no engine; whoever waited for it has been told.
            EngineBroken: the engine failed; so were all sequences.
        """
        thread = EngineThread()
        try:
            engine = await self._open(thread)
            try:
                await self._run_steps(thread, engine)
            finally:
                if self.state != "failed":  # a broken engine is left to the process's end
                    await thread.call(engine.close)
            self._set_state("stopped")
        finally:
            thread.close()

    async def _open(self, thread: EngineThread) -> Engine:
        self._set_state("loading")
        token = current_token()
        last_told_at = 0.0

        def progress(phase: str, fraction: float) -> bool:
            nonlocal last_told_at
            is_news = phase != self.load_phase or fraction >= 1.0
            now = monotonic()
            self.load_phase, self.load_fraction = phase, fraction
            if is_news or now - last_told_at >= PROGRESS_S:
                last_told_at = now
                anyio.from_thread.run_sync(self._tell_change, token=token)
            return not self._is_stopping

        try:
            self.engine = await thread.call(partial(self._load, self.config.engine, progress))
        except (LoadError, ConfigError) as err:
            self._end_load(err)
            raise
        except Exception:
            self._end_load(LoadError("an internal error"))
            raise
        config = self.config
        self.batcher = Batcher(
            self.engine.limits, self.engine, config.max_queue, config.target_itl_ms / 1e3
        )
        if not self._is_stopping:
            self._set_state("ready")
        self._loaded.set()
        return self.engine

    def _end_load(self, err: LoadError | ConfigError) -> None:
        """Tell those who wait for the engine that there will be none."""
        self._error = err
        self._set_state("failed" if err.exit_code else "stopped")
        self._loaded.set()

    async def _run_steps(self, thread: EngineThread, engine: Engine) -> None:
        batcher = self.batcher
        assert batcher is not None
        try:
            while True:
                step = batcher.plan(monotonic())
                if step is None:
                    if self._is_stopping and not batcher.seq_ids:
                        return
                    await self._wake.wait()
                    self._wake = anyio.Event()
                    for _ in range(GATHER_TURNS):
                        await checkpoint()
                    continue
                self.step_started_at = started_at = monotonic()
                result = await thread.call(partial(run_step, engine, step))
                now = monotonic()
                self.step_started_at = None
                self._tell(self._record(batcher, step, result, now, now - started_at))
        except BaseException as err:
            self.give_up(str(err) if isinstance(err, EngineBroken) else "the decode loop has ended")
            raise

    def _record(
        self, batcher: Batcher, step: Step, result: StepResult, now: float, elapsed_s: float
    ) -> list[Emission]:
        self.n_steps += 1
        self.step_s = elapsed_s
        self._recent.append((now, len(result.sampled)))
        while self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()
        if result.n_batches == len(step.batches):
            return batcher.commit(step, result, now, elapsed_s)
        log.debug("step.backed_off", step=step.number, n_rows=step.n_rows)
        return batcher.back_off(step, result, now)

    def _tell(self, emissions: list[Emission]) -> None:
        """Hand what sequences have to say to their listeners, which never wait."""
        for emission in emissions:
            sequence = emission.sequence
            if emission.token is not None:
                self.n_generated_tokens += 1
            if emission.ending is None:
                self._listeners[sequence.seq_id](emission)
                continue
            self.n_prompt_tokens += sequence.n_prompt
            self.n_failed += isinstance(emission.ending, RequestError)
            self._listeners.pop(sequence.seq_id)(emission)

    def give_up(self, cause: str) -> None:
        """Fail every sequence now, whatever the step in progress may still be doing."""
        self._is_stopping = True
        self._set_state("failed")
        self._loaded.set()
        if self.batcher is not None:
            self.batcher.in_flight = None
            for seq_id in self.batcher.seq_ids:
                self.end(seq_id, EngineFailed(cause))

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
        self._loaded.set()  # to refuse those who wait for the model, not only once it is there
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
        limit = self.config.max_queue
        n_free = self.config.engine.n_slots
        n_ahead = self._n_preparing
        if self.batcher is not None:
            n_free = self.batcher.residency.pool.n_free
            n_ahead += len(self.batcher.waiting)
        if n_ahead >= limit + n_free:
            n_waiting = n_ahead - n_free
            raise Overloaded(
                f"{n_waiting} requests are waiting, the queue holds {limit}",
                n_waiting=n_waiting,
                max_queue=limit,
            )
        self._n_preparing += 1
        return max(0, n_ahead - n_free)

    def leave_place(self) -> None:
        """Give a place back: its request is submitted, or will not be."""
        self._n_preparing -= 1

    async def loaded(self) -> Engine:
        """Wait for the engine, behind those who have waited longer.

        Raises:
            LoadFailed: it could not be loaded.
            ShuttingDown: the daemon was told to stop before it was.
        """
        if not self._loaded.is_set():
            async with self._line:
                await self._loaded.wait()
        if self._error is not None or self.engine is None:
            raise self._refusal()
        return self.engine

    def submit(self, prompt: Prompt, options: Options, listener: Listener) -> int:
        """Queue a request; its listener hears of every token and of the end.

        Raises:
            RequestError: it cannot be served.
        """
        if self._is_stopping or self.batcher is None:
            raise self._refusal()
        seq_id = self.n_requests + 1
        sequence = admit(seq_id, prompt, options, self.batcher.limits, monotonic())
        self.batcher.submit(sequence)
        self.n_requests = seq_id
        self._listeners[seq_id] = listener
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
    def n_waiting(self) -> int:
        """Requests that wait for a slot, or for the model."""
        return self._n_preparing + (0 if self.batcher is None else self.batcher.n_waiting)

    @property
    def step_age_s(self) -> float:
        """Age of the step in progress; 0 when there is none."""
        started_at = self.step_started_at
        return 0.0 if started_at is None else monotonic() - started_at

    @property
    def health(self) -> DaemonState:
        """The state, or `stalled` when the step in progress has taken too long."""
        return "stalled" if self.step_age_s > self.config.step_timeout_s else self.state

    @property
    def tokens_per_s(self) -> float:
        """Tokens sampled per second, lately."""
        if len(self._recent) < 2:
            return 0.0
        n_tokens = sum(n for _, n in self._recent) - self._recent[0][1]
        elapsed_s = monotonic() - self._recent[0][0]
        return n_tokens / max(elapsed_s, 1e-3) if elapsed_s < 2 * RATE_WINDOW_S else 0.0
