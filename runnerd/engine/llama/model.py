"""The weights: loaded with progress, able to stop, and described for clients."""

import ctypes
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from runnerd.engine.base import ModelInfo
from runnerd.engine.llama.adapters import LoraAdapters
from runnerd.engine.llama.devices import handles_of
from runnerd.engine.llama.fatal import blamed_for_aborts
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.library import is_of_memory, lib, quiet_load, said_of_load
from runnerd.engine.llama.offload import offloaded
from runnerd.engine.llama.phases import Phases
from runnerd.engine.llama.vocabulary import Vocabulary
from runnerd.engine.placement import MAIN_MEMORY, Placement
from runnerd.errors import BadModel, ConfigError, OutOfMemory

# Mapped weights are ready sooner than read ones (SmolLM2 90 ms against 135 ms, from the page
# cache), are not held twice, and a restarted daemon finds them still in memory.
LOAD_MMAP = 1
M_ROPE = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)  # time, y, x, and one of no use


class LlamaModel:
    """A loaded model and its adapters. Free its samplers and contexts first.

    `n_swa`: some layers see only the last so many positions; 0: all see all. `is_recurrent`: some
    layers keep a state instead of cells. `n_axes`: the numbers that make up a position. `said` is
    llama.cpp's log of the load, by which `n_gpu_layers` are on devices, whatever the placement was.
    """

    def __init__(
        self,
        handle: int,
        path: str,
        architecture: str,
        adapters: LoraAdapters,
        placement: Placement,
        said: Sequence[str],
    ) -> None:
        self.handle = handle
        self.adapters = adapters
        self.placement = placement
        self.said = said
        counts = offloaded(said)
        self.n_gpu_layers = counts[0] if counts else 0
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


PHASES = ("open", "weights", "projector", "context", "warm-up")


class ModelParams:
    """llama.cpp's settings for the weights; `params` points into this, so keep it until loaded."""

    def __init__(self, placement: Placement = MAIN_MEMORY) -> None:
        self.params = lib.llama_model_default_params()
        n = len(placement.devices)
        if n > lib.llama_max_devices():
            raise ConfigError(f"{n} devices: llama.cpp takes {lib.llama_max_devices()}")
        # Ends with NULL. Without a list llama.cpp would look at every device that there is.
        self.devices = (ctypes.c_void_p * (n + 1))(*handles_of(placement.devices))
        self._shares = (ctypes.c_float * lib.llama_max_devices())(*placement.n_layers)
        self.params.devices = ctypes.cast(self.devices, ctypes.c_void_p)
        self.params.n_gpu_layers = placement.n_gpu_layers
        self.params.split_mode = lib.LLAMA_SPLIT_MODE_LAYER
        self.params.main_gpu = 0
        # Whole numbers, so llama.cpp's division gives each device just its layers.
        self.params.tensor_split = ctypes.cast(self._shares, ctypes.POINTER(ctypes.c_float))


def load_model(
    path: str,
    header: GGUFHeader,
    phases: Phases,
    adapters: Iterable[tuple[str, str]] = (),
    placement: Placement = MAIN_MEMORY,
    begin: float = 0.0,
) -> LlamaModel:
    """Load the weights, onto devices as placed, and adapters by name and path.

    `begin` is the fraction of phase "weights" that was reached before.

    Raises:
        BadModel: llama.cpp cannot run a file, or it is of a kind that is not served.
        ModelMissing: there is no file for an adapter.
        OutOfMemory: a device, or main memory, does not hold the weights.
        LoadCancelled: `progress` said so.
    """
    settings = ModelParams(placement)
    params = settings.params
    params.load_mode = LOAD_MMAP
    callback = lib.llama_progress_callback(phases.native("weights", begin))  # alive until loaded
    params.progress_callback = callback
    with quiet_load() as errors, blamed_for_aborts(path):
        handle: int | None = lib.llama_model_load_from_file(os.fsencode(path), params)
        said = said_of_load()
    loaded = LoraAdapters()
    try:
        phases.check()
        if handle is None:
            words = "; ".join(errors)
            if is_of_memory(words.replace(path, "")):
                raise OutOfMemory(f"{path}: no memory for its weights: {words}")
            raise BadModel(f"{path}: llama.cpp cannot load it: {words}")
        check_kind(path, handle, header.architecture)
        loaded.load(handle, header, adapters)
        return LlamaModel(handle, path, header.architecture, loaded, placement, said)
    except BaseException:
        loaded.close()
        if handle is not None:
            lib.llama_model_free(handle)
        raise


def check_kind(path: str, handle: int, architecture: str) -> None:
    """Refuse models that generate no text."""
    if lib.llama_model_has_encoder(handle) or lib.llama_model_is_diffusion(handle):
        raise BadModel(f"{path}: architecture {architecture!r} does not generate token by token")
