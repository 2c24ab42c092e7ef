"""A reference engine whose next call of a method fails, or hangs, as a test wants it."""

import threading
from collections import Counter

import anyio
from anyio import to_thread

from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from tests.daemon import PATIENCE_S


class FaultyEngine(ReferenceEngine):
    """Raises what it was told to, each time once."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        self._errors: dict[str, BaseException] = {}
        self._n_left: Counter[str] = Counter()
        self._hangs: set[str] = set()
        self._may_go_on = threading.Event()
        self.hanging = threading.Event()
        super().__init__(config, parse_options(config.model), progress)

    def fail(self, call: str, error: BaseException, nth: int = 1) -> None:
        """Let the nth call of a method from now on raise an error."""
        self._errors[call] = error
        self._n_left[call] = nth

    def hang(self, call: str) -> None:
        """Let the next call of a method hang until `let_go`; `hanging` is set meanwhile."""
        self._hangs.add(call)

    def let_go(self) -> None:
        """Let what hangs go on, and what was to hang."""
        self._may_go_on.set()

    async def at_hang(self) -> None:
        """Wait until something hangs."""
        with anyio.fail_after(PATIENCE_S):
            await to_thread.run_sync(self.hanging.wait, abandon_on_cancel=True)

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name.startswith("_") or name not in CALLS:
            return value
        assert callable(value)

        def call(*args: object, **options: object) -> object:
            self._n_left[name] -= 1
            if self._n_left[name] == 0:
                raise self._errors.pop(name)
            if name in self._hangs:
                self._hangs.remove(name)
                self.hanging.set()
                self._may_go_on.wait()
            return value(*args, **options)

        return call

    def close(self) -> None:
        self.let_go()
        super().close()


CALLS = {
    "expand",
    "token_bytes",
    "constrain",
    "apply",
    "use_adapters",
    "decode",
    "oldest",
    "checkpoint_bytes",
    "embed",
    "encode",
}
