"""The weights: loaded with progress, able to stop, and described for clients."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from runnerd.engine.base import LoadProgress, ModelInfo
from runnerd.engine.llama.adapters import LoraAdapters
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.library import lib, quiet_load
from runnerd.engine.llama.vocabulary import Vocabulary
from runnerd.errors import BadModel, LoadCancelled

# Mapped weights are ready sooner than read ones (SmolLM2 90 ms against 135 ms, from the page
# cache), are not held twice, and a restarted daemon finds them still in memory.
LOAD_MMAP = 1
M_ROPE = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)  # time, y, x, and one of no use


class LlamaModel:
    """A loaded model and its adapters. Free its samplers and contexts first.

    `n_swa`: some layers see only the last so many positions; 0: all see all. `is_recurrent`: some
    layers keep a state instead of cells. `n_axes`: the numbers that make up a position.
    """

    def __init__(self, handle: int, path: str, architecture: str, adapters: LoraAdapters) -> None:
        self.handle = handle
        self.adapters = adapters
        self.n_swa: int = lib.llama_model_n_swa(handle)
        self.is_recurrent: bool = lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(
            handle
        )
        self.n_axes = 4 if lib.llama_model_rope_type(handle) in M_ROPE else 1
        self.vocabulary = Vocabulary(handle)
        template: bytes | None = lib.llama_model_chat_template(handle, None)
        self.description = ModelInfo(
            name=Path(path).stem,
            architecture=architecture,
            n_vocab=self.vocabulary.n_tokens,
            n_ctx_train=lib.llama_model_n_ctx_train(handle),
            n_params=lib.llama_model_n_params(handle),
            size_bytes=lib.llama_model_size(handle),
            chat_template=(template or b"").decode(errors="replace"),
            bos_token=self.vocabulary.bos,
            adds_bos=self.vocabulary.adds_bos,
            end_tokens=self.vocabulary.end_tokens,
            eos_token=self.vocabulary.eos,
            adapters=adapters.names,
        )

    def close(self) -> None:
        """Free the weights."""
        self.adapters.close()
        lib.llama_model_free(self.handle)


class Phases:
    """Reports the phases of a load, and stops it where the answer is no."""

    def __init__(self, progress: LoadProgress) -> None:
        self._progress = progress
        self._error: BaseException | None = None

    def reach(self, phase: str, fraction: float) -> None:
        """Report; raises LoadCancelled, or what `progress` raises."""
        if not self._progress(phase, fraction):
            raise LoadCancelled(f"told to stop at {fraction:.0%} of phase {phase!r}")

    def native(self, phase: str) -> Callable[[float, int | None], bool]:
        """Return a callback for llama.cpp, through which no exception can pass."""

        def callback(fraction: float, _user_data: int | None) -> bool:
            if self._error is None:
                try:
                    self.reach(phase, min(fraction, 1.0))
                except BaseException as err:  # also KeyboardInterrupt: raised again below
                    self._error = err
            return self._error is None

        return callback

    def check(self) -> None:
        """Raise what stopped the callback."""
        if self._error is not None:
            raise self._error


def load_model(
    path: str, header: GGUFHeader, phases: Phases, adapters: Iterable[tuple[str, str]] = ()
) -> LlamaModel:
    """Load the weights, and adapters by name and path.

    Raises:
        BadModel: llama.cpp cannot run a file, or it is of a kind that is not served.
        ModelMissing: there is no file for an adapter.
        LoadCancelled: `progress` said so.
    """
    params = lib.llama_model_default_params()
    params.load_mode = LOAD_MMAP
    callback = lib.llama_progress_callback(phases.native("weights"))  # alive until loaded
    params.progress_callback = callback
    with quiet_load() as errors:
        handle: int | None = lib.llama_model_load_from_file(os.fsencode(path), params)
    loaded = LoraAdapters()
    try:
        phases.check()
        if handle is None:
            raise BadModel(f"{path}: llama.cpp cannot load it: {'; '.join(errors)}")
        _check_kind(path, handle, header.architecture)
        loaded.load(handle, header, adapters)
        return LlamaModel(handle, path, header.architecture, loaded)
    except BaseException:
        loaded.close()
        if handle is not None:
            lib.llama_model_free(handle)
        raise


def _check_kind(path: str, handle: int, architecture: str) -> None:
    """Refuse models that generate no text."""
    if lib.llama_model_has_encoder(handle) or lib.llama_model_is_diffusion(handle):
        raise BadModel(f"{path}: architecture {architecture!r} does not generate token by token")
