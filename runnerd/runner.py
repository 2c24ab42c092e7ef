"""The model's owner: loads it, lets requests in, runs the decode loop, closes it at the end.

The runner is the sole owner of batcher and engine.
"""

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import anyio
from anyio import to_thread

from runnerd.config import Config
from runnerd.core.batcher import Batcher
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options, admit
from runnerd.decode_loop import DecodeLoop, Listener
from runnerd.engine.base import Engine
from runnerd.engine_thread import EngineThread
from runnerd.errors import (
    ConfigError,
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

T = TypeVar("T")


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
        self._loop: DecodeLoop | None = None
        self._reading = anyio.Lock()  # held by who reads the vocabulary in a thread
        self._step = StepWatch(config.step_timeout_s, self._tell_change)
        self._is_stopping = False
        self._n_preparing = 0
        self._n_sequences = 0

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load the model and run steps until `stop`, with nothing left in flight.

        The engine stays open for who tokenizes, until `close`.

        Raises:
            LoadError, ConfigError: there is no engine; whoever waited for it has been told.
            EngineBroken: the engine failed; so were all sequences.
        """
        self._thread = EngineThread()
        loop = await self._open(self._thread)
        await loop.run()
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

    async def _open(self, thread: EngineThread) -> DecodeLoop:
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
        loop = DecodeLoop(batcher, engine, thread, self.figures, self._step, self.give_up)
        self._loop = loop
        if self._is_stopping:
            loop.stop()
        else:
            self._set_state("ready")
        self._loading.end()
        return loop

    def _end_load(self, err: LoadError | ConfigError) -> None:
        """Tell those who wait for the engine that there will be none."""
        self._error = err
        self._set_state("failed" if err.exit_code else "stopped")
        self._loading.end()

    def give_up(self, cause: str) -> None:
        """Fail every sequence now, whatever the step in progress may still be doing."""
        self._is_stopping = True
        self._set_state("failed")
        self._loading.stop()
        if self._loop is not None:
            self._loop.give_up(cause)

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
        if self._loop is not None:
            self._loop.stop()

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
        if self._is_stopping or self.batcher is None or self._loop is None:
            raise self._refusal()
        seq_id = self._n_sequences + 1
        sequence = admit(seq_id, prompt, options, self.batcher.limits, monotonic())
        self._loop.submit(sequence, listener)
        self._n_sequences = seq_id
        return seq_id

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; one that has ended is left alone."""
        if self._loop is not None:
            self._loop.end(seq_id, ending)

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Leave a sequence out of steps while its client does not read."""
        if self._loop is not None:
            self._loop.pause(seq_id, paused=paused)

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
