"""An engine whose passes of embeddings a test can watch, hold up and let fail."""

import threading
from collections.abc import Sequence

from anyio import to_thread

from runnerd.core.batch import Batch
from runnerd.embedding import Embeddings
from runnerd.engine.base import Decoded, EngineConfig, LoadProgress, Pooling, Vectors
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.errors import DecodeAborted, EngineFailed
from runnerd_protocol.messages import Embed, Prompt
from tests.daemon import Daemon


class PassEngine(ReferenceEngine):
    """Keeps a list of its calls; a pass waits at the gate while that is shut, or fails.

    With `stops` one that waits there can be stopped.
    """

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.calls: list[str] = []
        self.error: EngineFailed | None = None
        self.stops = False
        self._is_stopped = False
        self._arrived = threading.Semaphore(0)
        self._may_pass = threading.Event()
        self._may_pass.set()

    def decode(self, batch: Batch) -> Decoded:
        self.calls.append("step")
        return super().decode(batch)

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        self.calls.append("pass")
        self._arrived.release()
        self._may_pass.wait()
        if self._is_stopped:
            self.calls.append("stop")
            raise DecodeAborted(())
        if self.error is not None:
            raise self.error
        return super().embed(inputs, pooling)

    def set_abort(self, wanted: bool, /) -> None:
        super().set_abort(wanted)
        if self.stops:
            self._is_stopped = wanted
        if self.stops and wanted:
            self.open()

    def shut(self) -> None:
        """Let passes wait from now on."""
        self._may_pass.clear()

    def open(self) -> None:
        """Let passes go on."""
        self._may_pass.set()

    async def at_pass(self) -> None:
        """Wait until another pass has begun."""
        await to_thread.run_sync(self._arrived.acquire, abandon_on_cancel=True)

    def close(self) -> None:
        self.open()
        super().close()


def embeddings(daemon: Daemon) -> Embeddings:
    assert daemon.runner.loop is not None
    return daemon.runner.loop.embeddings


def many(n_inputs: int) -> Embed:
    inputs: list[Prompt] = [f"input {number}" for number in range(n_inputs)]
    return Embed(1, inputs)
