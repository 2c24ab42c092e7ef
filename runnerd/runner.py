"""The model's owner: loads it, lets requests in, runs the decode loop, closes it at the end.

The runner is the sole owner of batcher and engine.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

import anyio

from runnerd.audience import Listener
from runnerd.config import Config
from runnerd.core.batcher import Batcher
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options, admit
from runnerd.decode_loop import DecodeLoop
from runnerd.embed_queue import EmbeddingRequest
from runnerd.engine.base import Engine, Pooling
from runnerd.engine_thread import EngineThread
from runnerd.errors import LoadCancelled, LoadFailed, RequestError, ShuttingDown
from runnerd.failure import Failure, failure_of
from runnerd.figures import Figures
from runnerd.intake import Intake
from runnerd.loading import Loader, Loading
from runnerd.media.store import PictureStore
from runnerd.opening import open_loop
from runnerd.places import Places
from runnerd.step_watch import Watches
from runnerd.trouble import Troubles
from runnerd.vocabulary import Vocabulary
from runnerd_protocol.messages import DaemonState

INTAKE_BYTES = 128 * 2**20  # of requests in preparation, over all connections


class Runner:
    """Runs one engine for many sequences, from load to close."""

    def __init__(self, config: Config, load: Loader) -> None:
        self.config = config
        self.state: DaemonState = "starting"
        self.engine: Engine | None = None
        self.batcher: Batcher | None = None
        self.figures = Figures(monotonic())
        self.changed = anyio.Event()
        self.loading = Loading(load, self._tell_change)
        self.places = Places(config.engine.n_slots, config.max_queue, self._check_open)
        self.vocabulary = Vocabulary(self.loading, self._engine_in_use)
        self.intake = Intake(INTAKE_BYTES)
        self.uploads = Intake(INTAKE_BYTES)
        self.pictures = PictureStore(config.images)
        self.failure: Failure | None = None  # why there is no engine, or none that works
        self._thread: EngineThread | None = None
        self.loop: DecodeLoop | None = None  # what runs the steps, once there is an engine
        self.watches = Watches(config.step_timeout_s, self._tell_change)
        self.troubles = Troubles(self._tell_change)
        self._is_stopping = False
        self._n_sequences = 0

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load the model and run steps until `stop`, with nothing left in flight.

        The engine stays open for who tokenizes, until `close`.

        Raises:
            LoadError, ConfigError: there is no engine; whoever waited for it has been told.
            EngineBroken: the engine failed; so were all sequences.
        """
        loop = await self._open()
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
            async with self.vocabulary.unread():
                engine, self.engine = self.engine, None
                await self._thread.call(engine.close)
        self._thread.close()

    async def _open(self) -> DecodeLoop:
        self._set_state("loading")
        try:
            thread = self._thread = EngineThread()
            engine = await self.loading.run(thread, self.config.engine)
            batcher, loop = open_loop(
                self.config, engine, thread, self.figures, self.watches, self.pictures, self.give_up
            )
        except Exception as err:
            self._end_load(err)
            raise
        self.engine, self.loop = engine, loop
        self.batcher = self.places.batcher = batcher
        if self._is_stopping:
            loop.stop()
        else:
            self._set_state("ready")
        self.loading.end()
        return loop

    def _end_load(self, err: Exception) -> None:
        """Tell those who wait for the engine that there will be none."""
        if isinstance(err, LoadCancelled):
            self._set_state("stopped")
        else:
            self.failure = failure_of(err)
            self._set_state("failed")
        self.loading.end()

    def give_up(self, cause: str) -> None:
        """Fail every sequence now, whatever the step in progress may still be doing."""
        self._is_stopping = True
        self.failure = self.failure or Failure("internal", cause)
        self._set_state("failed")
        self.loading.stop()
        if self.loop is not None:
            self.loop.give_up(cause)

    def reconfigure(self, config: Config) -> None:
        """Go by other settings from now on; those of the engine are the same."""
        self.config = config
        self.places.max_queue = config.max_queue
        self.watches.set_limit(config.step_timeout_s)
        if self.loop is not None:  # else it is made by them
            self.loop.aim_at(config.target_itl_ms / 1e3)
        self._tell_change()

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
        self.loading.stop()  # to refuse those who wait for the model, not only once it is there
        if self.loop is not None:
            self.loop.embeddings.refuse_waiting(ShuttingDown("the daemon is shutting down"))
            self.loop.stop()

    def cancel_all(self) -> None:
        """End every sequence as cancelled: the time for draining is over."""
        for seq_id in () if self.batcher is None else self.batcher.seq_ids:
            self.end(seq_id, "cancelled")
        if self.loop is not None:
            self.loop.embeddings.fail_all(ShuttingDown("the daemon is shutting down"))

    def _set_state(self, state: DaemonState) -> None:
        self.state = state
        self._tell_change()

    def _tell_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    # --- requests --------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_stopping or self.failure is not None:
            raise self._refusal()

    def _engine_in_use(self) -> Engine:
        if self.engine is None or self.state in ("stopped", "failed"):
            raise self._refusal()
        return self.engine

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
        request_id: int = 0,
    ) -> int:
        """Queue a request; its listener hears of every token and of the end.

        `queued_at` is when it arrived (monotonic), if that is not now; `request_id` its client's
        number for it.

        Raises:
            RequestError: it cannot be served.
        """
        if self._is_stopping or self.batcher is None or self.loop is None:
            raise self._refusal()
        seq_id = self._n_sequences + 1
        queued_at = monotonic() if queued_at is None else queued_at
        sequence = admit(seq_id, prompt, options, self.batcher.limits, queued_at)
        self.loop.submit(sequence, listener, request_id)
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
        if self._is_stopping or self.loop is None:
            raise self._refusal()
        embeddings = self.loop.embeddings
        request = embeddings.submit(inputs, pooling)
        try:
            yield request
        finally:
            embeddings.drop(request)

    def end(self, seq_id: int, ending: FinishReason | RequestError) -> None:
        """End a sequence from outside; one that has ended is left alone."""
        if self.loop is not None:
            self.loop.end(seq_id, ending)

    def pause(self, seq_id: int, *, paused: bool) -> None:
        """Leave a sequence out of steps while its client does not read."""
        if self.loop is not None:
            self.loop.pause(seq_id, paused=paused)

    def n_ahead(self, seq_id: int) -> int | None:
        """Return how many wait before a sequence; None if it has begun, or has ended."""
        return None if self.loop is None else self.loop.n_ahead(seq_id)

    def line_moved(self) -> anyio.Event:
        """Return what is set when `n_ahead` of any sequence may have changed; there is a loop."""
        assert self.loop is not None, "nothing was submitted"
        return self.loop.line_moved

    def _refusal(self) -> RequestError:
        failure = self.failure
        if failure is not None and self.engine is None:
            message = f"the model could not be loaded: {failure.text}"
            return LoadFailed(message, **failure.details)
        return ShuttingDown("the daemon is shutting down")

    # --- how it is doing -------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether no more requests are taken."""
        return self._is_stopping

    @property
    def n_waiting(self) -> int:
        """Requests queued or in preparation that no free slot is about to take."""
        n_begun = 0 if self.loop is None else self.loop.embeddings.n_begun
        return self.places.n_waiting - n_begun
