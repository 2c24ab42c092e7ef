"""Stops a pass from any thread.

llama.cpp asks at each node of the graph whether to go on, hundreds of times a token; a callback
in Python would take the GIL as often. So it asks libc's strlen, of a string that we make empty
or not. Only the CPU backend asks: elsewhere a pass runs to its end.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from runnerd.engine.llama.library import lib, muted

_never = lib.ggml_abort_callback()  # NULL
_strlen = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)


class AbortSwitch:
    """A switch for contexts, off at first. It has to live as long as they do."""

    def __init__(self, *contexts: int) -> None:
        self._text = ctypes.create_string_buffer(2)  # of which the second byte stays 0
        self._lock = Lock()
        self._is_wanted = self._gives_way = False
        for context in contexts:
            self.attach(context)

    def attach(self, context: int) -> None:
        """Let a context's passes ask this switch."""
        with muted():
            lib.llama_set_abort_callback(context, _strlen, ctypes.addressof(self._text))

    @contextmanager
    def detached(self, context: int) -> Iterator[None]:
        """Let a context's passes run to their end for a `with` block, whatever the switch says."""
        with muted():
            lib.llama_set_abort_callback(context, _never, None)
        try:
            yield
        finally:
            self.attach(context)

    @contextmanager
    def counting(self, context: int, n_most: int | None = None) -> Iterator[Callable[[], int]]:
        """Count how often a context's passes ask, for a `with` block; stop them after `n_most`.

        They ask after each node that there is work for. Yields what returns the count.
        """
        n_asked = 0

        def is_enough(_user_data: int | None) -> bool:
            nonlocal n_asked
            n_asked += 1
            return n_most is not None and n_asked >= n_most

        callback = lib.ggml_abort_callback(is_enough)
        with muted():  # llama.cpp takes a pass that was stopped for one that has failed
            lib.llama_set_abort_callback(context, callback, None)
            try:
                yield lambda: n_asked
            finally:
                self.attach(context)

    @property
    def is_wanted(self) -> bool:
        """Whether `set` has passes stopped."""
        return self._is_wanted

    def set(self, wanted: bool) -> None:
        """Stop the pass in progress and those to come, or let them run again."""
        with self._lock:
            self._is_wanted = wanted
            self._update()

    def give_way(self, wanted: bool) -> None:
        """Stop passes for a reason of the engine's own; `set` neither ends that nor is ended."""
        with self._lock:
            self._gives_way = wanted
            self._update()

    def _update(self) -> None:
        self._text[0] = int(self._is_wanted or self._gives_way).to_bytes()
