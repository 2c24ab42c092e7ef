"""llama.cpp's shared library: loaded once, quiet, its return codes turned into errors.

`lib` is llama_cpp's low-level binding. Its calls release the GIL. A call declared to give a
pointer to a struct gives a falsy NULL object, never None: test for truth.
"""

import ctypes
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runnerd.errors import ConfigError, EngineBroken, NoKVSlot

# On an abort ggml forks a debugger for a backtrace, which takes seconds and can hang.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
try:
    import llama_cpp as lib
except ImportError as err:
    raise ConfigError(f"the llama engine needs llama-cpp-python (runnerd[llama]): {err}") from err
except (OSError, RuntimeError) as err:  # the package is there, its shared library does not load
    raise ConfigError(f"llama-cpp-python does not load: {err}") from err

__all__ = [
    "ABORTED",
    "NO_ROOM",
    "check_decode",
    "ggml",
    "is_of_memory",
    "lib",
    "load_callback",
    "muted",
    "quiet_load",
    "said_of_load",
    "silent_callback",
]

INFO, ERROR, CONTINUED = 2, 4, 5  # ggml_log_level
STDERR = 2
NO_ROOM = 1  # llama_decode: nothing is stored
ABORTED = 2  # llama_decode: the rows of earlier passes within the batch are stored
MAX_LINES = 1 << 16  # of a load: some for each layer, and some for a token that is odd

# What the binding has no names for. The library is loaded already, and finds ggml's among its own.
_folder = os.environ.get("LLAMA_CPP_LIB_PATH") or Path(lib.__file__).with_name("lib")
ggml = ctypes.CDLL(str(Path(_folder, "libllama.so")))


class _LoadLog:
    """Passes all but debug lines on to stderr; keeps all of them, and the last errors apart."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=3)
        self.said: deque[bytes] = deque(maxlen=MAX_LINES)
        self._level = 0

    def __call__(self, level: int, text: bytes, _user_data: int | None) -> None:
        self._level = self._level if level == CONTINUED else level
        self.said.append(text)
        if self._level == ERROR:
            self.errors.append(text.decode(errors="replace").strip())
        if self._level >= INFO:
            with suppress(OSError):  # a closed stderr must not end the load
                os.write(STDERR, text)


_load_log = _LoadLog()
# llama.cpp may call it as long as the process lives, so it is never freed.
load_callback = lib.llama_log_callback(_load_log)
_native_callback = lib.llama_log_callback()  # NULL: llama.cpp writes to stderr by itself
# A function that does nothing with whatever it is given, and takes no GIL for it.
silent_callback = ctypes.cast(ctypes.CDLL(None).abs, lib.llama_log_callback)


def _use_native_log() -> None:
    lib.llama_log_set(_native_callback, ctypes.c_void_p())


# The binding installs a Python callback when imported. In use, messages come from any thread
# and one that waits for the GIL would stall the model.
_use_native_log()
lib.llama_backend_init()


@contextmanager
def quiet_load() -> Iterator[deque[str]]:
    """Keep a load's thousands of debug lines off stderr; yields the last errors, in words.

    llama.cpp's own log knows no levels, and a load speaks from the thread that loads.
    """
    _load_log.errors.clear()
    lib.llama_log_set(load_callback, ctypes.c_void_p())
    try:
        yield _load_log.errors
    finally:
        _use_native_log()
        _load_log.said.clear()  # can be megabytes


def said_of_load() -> list[str]:
    """Return what llama.cpp has said so far in the running `quiet_load`, debug lines too."""
    return b"".join(_load_log.said).decode(errors="replace").splitlines()


@contextmanager
def muted() -> Iterator[None]:
    """Keep off stderr what llama.cpp says of a call, which is to fail or of no interest."""
    lib.llama_log_set(silent_callback, ctypes.c_void_p())
    try:
        yield
    finally:
        _use_native_log()


def is_of_memory(words: str) -> bool:
    """Whether what llama.cpp says of a failure means that there was no memory."""
    return "alloc" in words or "memory" in words


def check_decode(code: int) -> None:
    """Raise what a return code of llama_decode means, other than that it was stopped.

    Raises:
        NoKVSlot: the cache has no room; it is as it was.
        EngineBroken: the forward pass failed; what the cache holds is unknown.

    Source: llama.h, llama_decode.
    """
    match code:
        case 0:
            return
        case _ if code == NO_ROOM:
            raise NoKVSlot("the KV cache has no room for the batch")
        case -1:
            raise AssertionError("llama_decode refused the batch as invalid")
        case _:
            raise EngineBroken(f"llama_decode failed with code {code}")
