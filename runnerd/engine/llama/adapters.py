"""LoRA adapters: loaded beside the weights, applied to a context as a whole.

An adapter's pair of tensors A and B changes a weight by B x A. What of a file llama.cpp ends
the process over, when it loads it or not before it is applied, is refused here.
"""

import ctypes
import os
from collections.abc import Iterable

from runnerd.core.batch import Adapters
from runnerd.engine.llama.gguf import FLOAT32, GGUFHeader, read_gguf
from runnerd.engine.llama.gguf_tensors import TensorEntry
from runnerd.engine.llama.library import lib, muted, quiet_load
from runnerd.errors import BadModel, ModelMissing

ALPHA = "adapter.lora.alpha"
EMBEDDINGS = "token_embd.weight"


class LoraAdapters:
    """The adapters of a model, by name. Free them after its contexts and before it."""

    def __init__(self) -> None:
        self._handles: dict[str, ctypes.c_void_p] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of loading."""
        return tuple(self._handles)

    def load(self, model: int, base: GGUFHeader, adapters: Iterable[tuple[str, str]]) -> None:
        """Load the adapters of these names and paths for a model, of which `base` is the file.

        Raises:
            ModelMissing: there is no readable file.
            BadModel: it is no adapter, or not one for this model.
        """
        for name, path in adapters:
            check_adapter(name, path, base)
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


def check_adapter(name: str, path: str, base: GGUFHeader) -> GGUFHeader:
    """Read the header of an adapter, and refuse what llama.cpp would not survive.

    Raises:
        ModelMissing: there is no readable file.
        BadModel: it is no adapter, or not one for the model of which `base` is the file.
    """
    try:
        adapter = read_gguf(path)
        _check_file(path, adapter, base)
    except ModelMissing as err:
        raise ModelMissing(f"adapter {name}: {err}") from err
    except BadModel as err:
        raise BadModel(f"adapter {name}: {err}") from err
    return adapter


def _check_file(path: str, adapter: GGUFHeader, base: GGUFHeader) -> None:
    expected = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "general.architecture": base.architecture,
    }
    for key, value in expected.items():
        if adapter.metadata.get(key) != value:
            found = adapter.metadata.get(key)
            raise BadModel(f"{path}: {key} is {found!r}, expected {value!r}")
    if adapter.kinds.get(ALPHA, FLOAT32) != FLOAT32:
        raise BadModel(f"{path}: {ALPHA} is no float32")
    for name, a in adapter.tensors.items():
        weight = name.removesuffix(".lora_a")
        b, changed = adapter.tensors.get(f"{weight}.lora_b"), base.tensors.get(weight)
        # llama.cpp refuses what is no pair. Of a model in parts, the first part names some weights.
        if weight == name or b is None or changed is None:
            continue
        if weight == EMBEDDINGS and "output.weight" not in base.tensors:
            raise BadModel(f"{path}: changes {weight}, which this model also has for its output")
        if not (a.is_real and b.is_real):
            raise BadModel(f"{path}: the change of {weight} is in whole numbers")
        if not _fits(weight, a, b, changed):
            raise BadModel(
                f"{path}: {weight} of this model is {changed.extents},"
                f" the adapter's change of it is {a.extents} by {b.extents}"
            )


def _fits(weight: str, a: TensorEntry, b: TensorEntry, changed: TensorEntry) -> bool:
    """Whether a pair of tensors can change a weight.

    Source: build_lora_mm, build_lora_mm_id and build_inp_embd of llama-graph.cpp.
    """
    n_in, n_out, n_rank = changed.extent(0), changed.extent(1), b.extent(0)
    if weight == EMBEDDINGS:  # rows of A are looked up
        sizes = (a.extent(0), a.extent(1), b.extent(1)) == (n_rank, n_out, n_in)
    else:
        sizes = (a.extent(0), a.extent(1), b.extent(1)) == (n_in, n_rank, n_out)
    # Weights of experts lie behind one another.
    experts = all(a.extent(dim) == b.extent(dim) == changed.extent(dim) for dim in (2, 3))
    return sizes and experts and n_rank > 0
