"""A load in pretence: llama.cpp allocates nothing, and says how large all buffers would be.

Vocabulary and metadata are there for real. Recurrent states are allocated, a few MB for a slot.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.context_params import FLASH_ATTENTION, context_params
from runnerd.engine.llama.fatal import blamed_for_aborts
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.host_memory import heap_bytes
from runnerd.engine.llama.library import is_of_memory, lib, muted
from runnerd.engine.llama.model import ModelParams, check_kind
from runnerd.engine.llama.probe_log import LoadSizes, read_sizes
from runnerd.engine.llama.shape import ContextShape
from runnerd.engine.placement import Placement
from runnerd.errors import BadModel, ConfigError, OutOfMemory

READ = 0  # as load_mode: to map the file without allocating would end the process
_lines: list[str] = []


def _keep(_level: int, text: bytes, _user_data: int | None) -> None:
    _lines.append(text.decode(errors="replace"))


_keep_callback = lib.llama_log_callback(_keep)  # alive as long as llama.cpp may call it


class Probe:
    """A model without weights."""

    def __init__(self, config: EngineConfig, handle: int, lines: list[str], n_bytes: int) -> None:
        self._config = config
        self._handle = handle
        self._lines = lines
        self.vocabulary_bytes = n_bytes
        self.n_vocab: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(handle))

    def sizes(self, shape: ContextShape) -> LoadSizes:
        """Return what a load with such a context would take.

        Raises:
            ConfigError, OutOfMemory: the model does not allow it, or it cannot even be pretended.
        """
        with kept_log() as lines, blamed_for_aborts(self._config.model):
            params = context_params(shape, FLASH_ATTENTION[self._config.flash_attn])
            context: int | None = lib.llama_init_from_model(self._handle, params)
            if context is not None:
                lib.llama_free(context)
        if context is not None:
            return read_sizes(self._lines + lines)
        words = last_words(lines)
        if is_of_memory(words):
            raise OutOfMemory(f"no context for {shape.n_slots} slots of {shape.n_ctx}: {words}")
        raise ConfigError(f"llama.cpp makes no such context: {words}")


@contextmanager
def probing(config: EngineConfig, header: GGUFHeader, placement: Placement) -> Iterator[Probe]:
    """Load a model without its weights, for a `with` block.

    Raises:
        BadModel: llama.cpp cannot run it, or it is of a kind that is not served.
    """
    settings = ModelParams(placement)
    params = settings.params
    params.load_mode, params.no_alloc = READ, True
    before = heap_bytes()
    with kept_log() as lines, blamed_for_aborts(config.model):
        handle: int | None = lib.llama_model_load_from_file(os.fsencode(config.model), params)
    if handle is None:
        raise BadModel(f"{config.model}: llama.cpp cannot load it: {last_words(lines)}")
    try:
        check_kind(config.model, handle, header.architecture)
        yield Probe(config, handle, lines, max(0, heap_bytes() - before))
    finally:
        lib.llama_model_free(handle)


@contextmanager
def kept_log() -> Iterator[list[str]]:
    """Keep what llama.cpp says, and keep it off stderr, for a `with` block."""
    lines: list[str] = []
    with muted():
        lib.llama_log_set(_keep_callback, ctypes.c_void_p())
        _lines.clear()
        yield lines
    lines.extend(_lines)


def last_words(lines: list[str]) -> str:
    """Return the last lines of a log, which say why nothing came of it."""
    return "; ".join(line.strip() for line in lines[-3:])
