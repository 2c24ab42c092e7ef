"""Which weights the CPU would copy into a layout of its own, beside the mapped file.

ggml offers buffer types that hold weights as the vector unit reads them best. llama.cpp asks for
each weight whether one of them takes it, and so does this, without allocating anything.

Source: llama-model-loader.cpp, select_weight_buft and weight_buft_supported; ggml-backend.h.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from runnerd.engine.llama.gguf_tensors import TensorEntry
from runnerd.engine.llama.library import ggml
from runnerd.engine.llama.plan_layers import EMBEDDINGS, OUTPUT

CPU = 0  # ggml_backend_dev_type
F32, I32 = 0, 26  # ggml_type
N_ROWS = 512  # that a weight is multiplied with, in llama.cpp's question
# Weights of these rows are looked up, or otherwise not multiplied with as a matrix.
_LOOKED_UP = (EMBEDDINGS, "position_embd.weight", "token_types.weight", "per_layer_token_embd.")
_EXPERTS = "_exps."


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class _Tensor(ctypes.Structure):
    """The beginning of a ggml_tensor."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p))


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(ggml, name)
    function.restype, function.argtypes = result, arguments


_P, _INT, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_TENSOR = ctypes.POINTER(_Tensor)
_declare("ggml_init", _P, _InitParams)
_declare("ggml_free", None, _P)
_declare("ggml_tensor_overhead", ctypes.c_size_t)
_declare("ggml_new_tensor_4d", _TENSOR, _P, _INT, _I64, _I64, _I64, _I64)
_declare("ggml_mul_mat", _TENSOR, _P, _TENSOR, _TENSOR)
_declare("ggml_mul_mat_id", _TENSOR, _P, _TENSOR, _TENSOR, _TENSOR)
_declare("ggml_backend_dev_by_type", _P, _INT)
_declare("ggml_backend_dev_backend_reg", _P, _P)
_declare("ggml_backend_dev_supports_op", ctypes.c_bool, _P, _TENSOR)
_declare("ggml_backend_reg_get_proc_address", _P, _P, ctypes.c_char_p)
_declare("ggml_backend_buft_alloc_buffer", _P, _P, ctypes.c_size_t)
_declare("ggml_backend_buft_get_alloc_size", ctypes.c_size_t, _P, _TENSOR)
_declare("ggml_backend_buffer_free", None, _P)
_ExtraTypes = ctypes.CFUNCTYPE(ctypes.POINTER(_P), _P)


def repacked(tensors: Mapping[str, TensorEntry], n_experts_used: int = 1) -> dict[str, int]:
    """Return what the copies take of the weights that the CPU copies, by the tensors' names."""
    cpu: int = ggml.ggml_backend_dev_by_type(CPU)
    types = _extra_types(cpu)
    if not types:
        return {}
    known: dict[TensorEntry, int] = {}
    found: dict[str, int] = {}
    for name, tensor in _multiplied(tensors):
        if tensor not in known:
            known[tensor] = _copy_bytes(cpu, types, tensor, n_experts_used)
        if known[tensor]:
            found[name] = known[tensor]
    return found


def _multiplied(tensors: Mapping[str, TensorEntry]) -> Iterator[tuple[str, TensorEntry]]:
    """Yield the weights that are matrices, or one matrix per expert."""
    for name, tensor in tensors.items():
        n_dims = len(tensor.extents)
        is_matrix = n_dims == (3 if _EXPERTS in name else 2)
        is_tied = name == EMBEDDINGS and OUTPUT not in tensors  # then it is the output layer's
        is_known = tensor.n_bytes > 0  # ggml ends the process over types that it does not know
        if is_known and is_matrix and (is_tied or _is_multiplied(name)):
            yield name, tensor


def _is_multiplied(name: str) -> bool:
    return name.endswith(".weight") and not name.startswith(_LOOKED_UP)


def _extra_types(cpu: int) -> list[int]:
    """Return the CPU's further buffer types, in llama.cpp's order."""
    backend = ggml.ggml_backend_dev_backend_reg(cpu)
    name = b"ggml_backend_dev_get_extra_bufts"
    address: int | None = ggml.ggml_backend_reg_get_proc_address(backend, name)
    if not address:
        return []
    types = []
    for each in _ExtraTypes(address)(cpu):  # ends with NULL
        if not each:
            break
        types.append(each)
    return types


def _copy_bytes(cpu: int, types: list[int], tensor: TensorEntry, n_experts_used: int) -> int:
    """Return the size of a weight in the first buffer type that takes it; 0: none does."""
    with _context() as context:
        extents = [tensor.extent(dim) for dim in range(4)]
        weight = ggml.ggml_new_tensor_4d(context, tensor.kind, *extents)
        if len(tensor.extents) == 3:
            rows = _new(context, F32, extents[0], n_experts_used, N_ROWS)
            chosen = _new(context, I32, n_experts_used, N_ROWS)
            product = ggml.ggml_mul_mat_id(context, weight, rows, chosen)
        else:
            product = ggml.ggml_mul_mat(context, weight, _new(context, F32, extents[0], N_ROWS))
        for each in types:
            buffer = ggml.ggml_backend_buft_alloc_buffer(each, 0)
            weight.contents.buffer = buffer
            takes_it: bool = ggml.ggml_backend_dev_supports_op(cpu, product)
            ggml.ggml_backend_buffer_free(buffer)
            weight.contents.buffer = None
            if takes_it:
                return int(ggml.ggml_backend_buft_get_alloc_size(each, weight))
    return 0


@contextmanager
def _context() -> Iterator[int]:
    """Make a ggml context for the descriptions of a few tensors."""
    context: int = ggml.ggml_init(_InitParams(8 * ggml.ggml_tensor_overhead(), None, True))
    try:
        yield context
    finally:
        ggml.ggml_free(context)


def _new(context: int, kind: int, *extents: int) -> object:
    return ggml.ggml_new_tensor_4d(context, kind, *extents, *([1] * (4 - len(extents))))
