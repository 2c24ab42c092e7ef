"""Stops a decode from any thread.

llama.cpp asks at each node of the graph whether to go on, hundreds of times a token; a callback
in Python would take the GIL as often. So it asks libc's strlen, of a string that we make empty
or not. Only the CPU backend asks: elsewhere a decode runs to its end.
"""

import ctypes

from runnerd.engine.llama.library import lib, muted

_strlen = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)


class AbortSwitch:
    """The switch of one context, off at first. It has to live as long as the context."""

    def __init__(self, context: int) -> None:
        self._text = ctypes.create_string_buffer(2)  # of which the second byte stays 0
        with muted():
            lib.llama_set_abort_callback(context, _strlen, ctypes.addressof(self._text))

    def set(self, wanted: bool) -> None:
        """Stop the decode in progress and those to come, or let them run again."""
        self._text[0] = int(wanted).to_bytes()
