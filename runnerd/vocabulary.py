"""What requests ask of the engine itself, beside its steps: tokens, texts and grammars."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio

from runnerd.engine.base import ConstraintKind, Engine
from runnerd.loading import Loading
from runnerd.threads import in_thread

T = TypeVar("T")


class Vocabulary:
    """The engine as its readers see it; `engine` returns it, or raises if it is not to be used."""

    def __init__(self, loading: Loading, engine: Callable[[], Engine]) -> None:
        self._loading = loading
        self._engine = engine
        self._reading = anyio.Lock()  # held by who reads the vocabulary in a thread
        self._compiling = anyio.Lock()  # held by who compiles a grammar

    async def loaded(self) -> Engine:
        """Wait for the engine, behind those who have waited longer. To be used at once.

        Raises:
            LoadFailed: it could not be loaded.
            ShuttingDown: there will be none, or none any more.
        """
        await self._loading.over()
        return self._engine()

    async def read(self, function: Callable[[Engine], T], *, is_long: bool) -> T:
        """Wait for the engine, then tokenize or the like.

        What is long, and would keep everybody waiting, runs in a thread: one for all.

        Raises:
            RequestError: as `loaded`, and what the function raises.
        """
        engine = await self.loaded()
        if not is_long:
            return function(engine)
        async with self._reading:
            return await in_thread(partial(function, await self.loaded()))

    async def constrain(self, kind: ConstraintKind, text: str) -> object:
        """Compile a grammar or a schema in a thread, one at a time, for `Sampling.constraint`.

        Raises:
            RequestError: as `loaded`, and `BadGrammar`.
        """
        async with self._compiling:
            engine = await self.loaded()
            return await in_thread(partial(engine.constrain, kind, text))

    @asynccontextmanager
    async def unread(self) -> AsyncIterator[None]:
        """Wait until no thread reads the engine, and let none do so within the block."""
        async with self._reading, self._compiling:
            yield
