"""Reference engines that a test holds by the hand: step by step, or with the text it wants."""

import threading
from collections import Counter
from collections.abc import Sequence

from anyio import to_thread

from runnerd.core.batch import Batch
from runnerd.core.prompt import Part, Prompt
from runnerd.engine.base import Decoded, EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.engine.reference.tokenizer import END


class SteppedEngine(ReferenceEngine):
    """Runs a decode when it is let go; keeps the batches that it was given."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.batches: list[Batch] = []
        self._arrived = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._is_free = False

    def decode(self, batch: Batch) -> Decoded:
        self.batches.append(batch)
        self._arrived.release()
        if not self._is_free:
            self._permits.acquire()
        return super().decode(batch)

    async def at_step(self) -> Batch:
        """Wait until the next decode stands at the gate; return its batch."""
        await to_thread.run_sync(self._arrived.acquire, abandon_on_cancel=True)
        return self.batches[-1]

    def let_go(self) -> None:
        """Let the decode at the gate run."""
        self._permits.release()

    async def step(self, n_steps: int = 1) -> None:
        """Let decodes run, until another one stands at the gate."""
        for _ in range(n_steps):
            self.let_go()
            await self.at_step()

    def let_all_go(self) -> None:
        """Let this decode run and all that follow."""
        self._is_free = True
        self._permits.release()

    def close(self) -> None:
        self.let_all_go()
        super().close()


class ForcedEngine(ReferenceEngine):
    """Generates the bytes of `literal`, then the end token, whatever it was asked."""

    def __init__(self, config: EngineConfig, progress: LoadProgress, literal: bytes) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self._literal = literal
        self._n_given: Counter[int] = Counter()

    def decode(self, batch: Batch) -> Decoded:
        decoded = super().decode(batch)
        wanted = [span.seq_id for span in batch.spans if span.wants_logits]
        return Decoded(tuple(map(self._next, wanted)), decoded.sampling_s)

    def _next(self, seq_id: int) -> int:
        n_given = self._n_given[seq_id]
        self._n_given[seq_id] += 1
        return self._literal[n_given] if n_given < len(self._literal) else END


class SlowTokenizer(ReferenceEngine):
    """Takes its time over a text: `started` is set, and `expand` waits for `may_end`."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.started = threading.Event()
        self.may_end = threading.Event()

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        if threading.current_thread() is not threading.main_thread():
            self.started.set()
            self.may_end.wait()
        return super().expand(parts, add_bos=add_bos)

    def close(self) -> None:
        self.may_end.set()
        super().close()


class GatedLoad:
    """A loader that stands still, half done, until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self._may_end = threading.Event()

    def __call__(self, config: EngineConfig, progress: LoadProgress) -> ReferenceEngine:
        progress("weights", 0.5)
        self._may_end.wait()
        if self._error is not None:
            raise self._error
        return ReferenceEngine(config, parse_options(config.model), progress)

    def let_go(self) -> None:
        """Let the load end."""
        self._may_end.set()
