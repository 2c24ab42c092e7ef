"""The model's owner: loads it, lets requests in, runs the decode loop, closes it at the end.

The runner is the sole owner of batcher and engine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

import anyio
from anyio import to_thread

from runnerd.config import Config
from runnerd.core.batcher import Batcher
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options, admit
from runnerd.decode_loop import DecodeLoop, Listener
from runnerd.embed_queue import EmbeddingRequest
from runnerd.engine.base import ConstraintKind, Engine, Pooling
from runnerd.engine_thread import EngineThread
from runnerd.errors import (
    ConfigError,
    InvalidRequest,
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
        self._compiling = anyio.Lock()  # held by who compiles a grammar
        self._step = StepWatch(config.step_timeout_s, self._tell_change)
        self._is_stopping = False
        self._n_preparing = 0
        self._n_embedding = 0
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
            async with self._reading, self._compiling:
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
        loop = DecodeLoop(
            batcher,
            engine,
            thread,
            self.figures,
            self._step,
            self.give_up,
            self.config.target_itl_ms / 1e3,
        )
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
            self._loop.embeddings.refuse_waiting(ShuttingDown("the daemon is shutting down"))
            self._loop.stop()

    def cancel_all(self) -> None:
        """End every sequence as cancelled: the time for draining is over."""
        for seq_id in () if self.batcher is None else self.batcher.seq_ids:
            self.end(seq_id, "cancelled")
        if self._loop is not None:
            self._loop.embeddings.fail_all(ShuttingDown("the daemon is shutting down"))

    def _set_state(self, state: DaemonState) -> None:
        self.state = state
        self._tell_change()

    def _tell_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    # --- requests --------------------------------------------------------------------------

    def take_places(self, n: int) -> int:
        """Hold places in the queue, until `leave_places`; return how many are ahead of them.

        Raises:
            InvalidRequest: there are not so many, even if nobody else is here.
            Overloaded: the queue is full.
            LoadFailed, ShuttingDown: nothing is served any more.
        """
        if self._is_stopping or self._error is not None:
            raise self._refusal()
        max_queue = self.config.max_queue
        n_most = self.config.engine.n_slots + max_queue
        if n > n_most:
            raise InvalidRequest("n", n, f"at most {n_most}, the slots and the queue")
        n_waiting = self._n_waiting(n)
        if n_waiting > max_queue:
            raise Overloaded(
                f"{max(0, n_waiting - n)} requests are waiting, the queue holds {max_queue}",
                n_waiting=max(0, n_waiting - n),
                max_queue=max_queue,
            )
        self._n_preparing += n
        return max(0, n_waiting - n)

    def leave_places(self, n: int) -> None:
        """Give places back: what they were for is submitted, or will not be."""
        self._n_preparing -= n

    def take_embedding_place(self) -> None:
        """Hold a place for a request for embeddings, until `leave_embedding_place`.

        It needs no slot, and is in nobody's way in the queue; but there are no more of them than
        the queue holds.

        Raises:
            Overloaded: the queue is full.
            LoadFailed, ShuttingDown: nothing is served any more.
        """
        if self._is_stopping or self._error is not None:
            raise self._refusal()
        n_waiting, max_queue = self._n_waiting(0) + self._n_embedding, self.config.max_queue
        if n_waiting > max_queue:
            raise Overloaded(
                f"{n_waiting} requests are waiting, the queue holds {max_queue}",
                n_waiting=n_waiting,
                max_queue=max_queue,
            )
        self._n_embedding += 1

    def leave_embedding_place(self) -> None:
        """Give a place back: the request has its answer."""
        self._n_embedding -= 1

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

    async def constrain(self, kind: ConstraintKind, text: str) -> object:
        """Compile a grammar or a schema in a thread, one at a time, for `Sampling.constraint`.

        Raises:
            RequestError: as `loaded`, and `BadGrammar`.
        """
        async with self._compiling:
            engine = await self.loaded()
            return await to_thread.run_sync(engine.constrain, kind, text)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token of the model adds to a text."""
        assert self.engine is not None, "no tokens without a model"
        return self.engine.token_bytes(token)

    def submit(
        self,
        prompt: Prompt,
        options: Options,
        listener: Listener,
        queued_at: float | None = None,
    ) -> int:
        """Queue a request; its listener hears of every token and of the end.

        `queued_at` is when it arrived (monotonic), if that is not now.

        Raises:
            RequestError: it cannot be served.
        """
        if self._is_stopping or self.batcher is None or self._loop is None:
            raise self._refusal()
        seq_id = self._n_sequences + 1
        queued_at = monotonic() if queued_at is None else queued_at
        sequence = admit(seq_id, prompt, options, self.batcher.limits, queued_at)
        self._loop.submit(sequence, listener)
        self._n_sequences = seq_id
        return seq_id

    @contextmanager
    def embedding(
        self, inputs: Sequence[Sequence[int]], pooling: Pooling
    ) -> Iterator[EmbeddingRequest]:
        """Evaluate inputs, of 1 to `n_embed` tokens each, as long as the block is not left.

        Raises:
            RequestError: they cannot be evaluated.
        """
        if self._is_stopping or self._loop is None:
            raise self._refusal()
        embeddings = self._loop.embeddings
        request = embeddings.submit(inputs, pooling)
        try:
            yield request
        finally:
            embeddings.drop(request)

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; one that has ended is left alone."""
        if self._loop is not None:
            self._loop.end(seq_id, ending)

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Leave a sequence out of steps while its client does not read."""
        if self._loop is not None:
            self._loop.pause(seq_id, paused=paused)

    def n_ahead(self, seq_id: int) -> int | None:
        """Return how many wait before a sequence; None if it has begun, or has ended."""
        return None if self._loop is None else self._loop.n_ahead(seq_id)

    def line_moved(self) -> anyio.Event:
        """Return what is set when `n_ahead` of any sequence may have changed; there is a loop."""
        assert self._loop is not None, "nothing was submitted"
        return self._loop.line_moved

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
        n_begun = 0 if self._loop is None else self._loop.embeddings.n_begun
        return self._n_waiting(0) + self._n_embedding - n_begun

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
