"""What is to be heard of a file that llama.cpp gives up on: it ends the process, and names no file.

Of some of what does not fit in a model's metadata an assertion tells, and of most in a projector,
which libmtmd checks while it is used.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from runnerd.engine.llama.library import STDERR, ggml
from runnerd.errors import BadModel

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_set_callback = ggml.ggml_set_abort_callback
_set_callback.argtypes = [ctypes.c_void_p]
_set_callback.restype = ctypes.c_void_p


@contextmanager
def blamed_for_aborts(path: str) -> Iterator[None]:
    """Where ggml aborts within the block, end as a bad model does; the last line says which.

    Source: ggml_abort of ggml.c.
    """

    def end(message: bytes) -> None:
        fact = " ".join(message.decode(errors="replace").split())
        # The newline before it ends a line that llama.cpp has begun.
        line = f"\n{path}: llama.cpp aborts on it: {fact}\n"
        try:
            os.write(STDERR, line.encode(errors="replace"))
        finally:  # whatever became of stderr
            os._exit(BadModel.exit_code)

    callback = _Callback(end)  # alive until it is set back
    _set_callback(callback)
    try:
        yield
    finally:
        _set_callback(None)
