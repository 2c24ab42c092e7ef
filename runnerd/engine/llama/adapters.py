"""LoRA adapters: loaded beside the weights, applied to a context as a whole."""

import ctypes
import os
from collections.abc import Iterable

from runnerd.core.batch import Adapters
from runnerd.engine.llama.gguf import read_gguf
from runnerd.engine.llama.library import lib, muted, quiet_load
from runnerd.errors import BadModel, ModelMissing


class LoraAdapters:
    """The adapters of a model, by name. Free them after its contexts and before it."""

    def __init__(self) -> None:
        self._handles: dict[str, ctypes.c_void_p] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of loading."""
        return tuple(self._handles)

    def load(self, model: int, architecture: str, adapters: Iterable[tuple[str, str]]) -> None:
        """Load the adapters of these names and paths.

        Raises:
            ModelMissing: there is no readable file.
            BadModel: it is no adapter, or not one for this model.
        """
        for name, path in adapters:
            try:
                _check_header(path, architecture)
            except ModelMissing as err:
                raise ModelMissing(f"adapter {name}: {err}") from err
            except BadModel as err:
                raise BadModel(f"adapter {name}: {err}") from err
            with quiet_load() as errors:
                handle = lib.llama_adapter_lora_init(model, os.fsencode(path))
            if not handle:
                raise BadModel(f"adapter {name}: {path}: {'; '.join(errors)}")
            self._handles[name] = handle

    def apply(self, context: int, adapters: Adapters) -> None:
        """Let the decodes of a context run with these adapters and no others."""
        n_adapters = len(adapters)
        handles = (lib.llama_adapter_lora_p_ctypes * n_adapters)(
            *(self._handles[adapter.name] for adapter in adapters)
        )
        scales = (ctypes.c_float * n_adapters)(*(adapter.scale for adapter in adapters))
        with muted():  # each change has a debug line
            lib.llama_set_adapters_lora(context, handles, n_adapters, scales)

    def close(self) -> None:
        """Free them."""
        while self._handles:
            lib.llama_adapter_lora_free(self._handles.popitem()[1])


def _check_header(path: str, architecture: str) -> None:
    """Refuse what is no adapter; llama.cpp ends the process over a value of a wrong type."""
    metadata = read_gguf(path).metadata
    expected = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "general.architecture": architecture,
    }
    for key, value in expected.items():
        if metadata.get(key) != value:
            raise BadModel(f"{path}: {key} is {metadata.get(key)!r}, expected {value!r}")
    if not isinstance(metadata.get("adapter.lora.alpha", 0.0), float):
        raise BadModel(f"{path}: adapter.lora.alpha is no float")
