"""The header of a GGUF file, read without loading anything, to refuse bad files early.

Only scalars, short strings and short arrays are kept; a vocabulary is passed over.

Source: gguf.h and gguf.cpp of ggml; versions 2 and 3 have the same layout.
"""

import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from runnerd.engine.llama.gguf_cursor import U32, U64, GGUFCursor
from runnerd.errors import BadModel, ModelMissing

Scalar = int | float | str
MetaValue = Scalar | tuple[int | float, ...]

MAX_ARRAY = 1024  # per-layer lists are kept
MAX_ENTRIES = 1 << 17  # tensors, or keys
MAX_DIMS = 4  # GGML_MAX_DIMS
# Of architectures whose files need not say it; as llama.cpp sets them in load_arch_hparams.
_SLIDING_PERIODS = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2}
F16_BYTES = 2

_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate(map(struct.Struct, ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))))
_SCALARS |= {10: U64, 11: struct.Struct("<q"), 12: struct.Struct("<d")}
# (values per block, bytes per block) and the ggml_type numbers that are stored so, as
# ggml_blck_size and ggml_type_size say. A type that is not listed is left to llama.cpp.
# fmt: off
_KINDS = {
    (1, 1): (24,), (1, 2): (1, 25, 30), (1, 4): (0, 26), (1, 8): (27, 28),
    (32, 17): (39,), (32, 18): (2, 20), (32, 20): (3,), (32, 22): (6,), (32, 24): (7,),
    (32, 34): (8,), (32, 36): (9,), (64, 18): (42,), (64, 36): (40,), (128, 18): (41,),
    (256, 50): (19,), (256, 54): (34,), (256, 56): (29,), (256, 66): (16, 35), (256, 74): (17,),
    (256, 82): (22,), (256, 84): (10,), (256, 98): (18,), (256, 110): (11, 21),
    (256, 136): (23,), (256, 144): (12,), (256, 176): (13,), (256, 210): (14,), (256, 292): (15,),
}
# fmt: on
_BLOCKS = {kind: block for block, kinds in _KINDS.items() for kind in kinds}


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says about itself; long strings and arrays are left out."""

    size_bytes: int
    version: int
    architecture: str
    n_tensors: int
    metadata: Mapping[str, MetaValue]

    def number(self, name: str) -> int | None:
        """Return the architecture's whole number of that name ("context_length")."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int) else None

    def kv_bytes_per_input(self) -> int | None:
        """Return what one cell of the KV cache takes at least over all layers, at f16."""
        per_layer = self.kv_bytes_per_layer()
        return None if per_layer is None else sum(per_layer)

    def kv_bytes_per_layer(self) -> tuple[int, ...] | None:
        """Return what one cell of the KV cache takes at least, at f16, of each layer.

        Exact for plain keys and values. Latent attention is taken to keep keys alone, and of
        two sizes of heads (of layers with a sliding window, and of others) the smaller counts.
        None where the metadata does not tell, or layers keep recurrent state.
        """
        recurrent = (".ssm.", ".full_attention_interval", ".wkv.", ".shortconv.", ".kda.")
        if any(word in key for key in self.metadata for word in recurrent):
            return None
        n_layers, n_heads = self.number("block_count"), self.number("attention.head_count")
        n_embd = self.number("embedding_length")
        default = n_embd // n_heads if n_embd is not None and n_heads else None
        key = self._least("attention.key_length", default)
        value = self._least("attention.value_length", default)
        if n_layers is None or n_layers > MAX_ARRAY or key is None or value is None:
            return None
        if self.number("attention.key_length_mla"):
            value = 0
        n_own = max(0, n_layers - (self.number("attention.shared_kv_layers") or 0))
        match self.metadata.get(f"{self.architecture}.attention.head_count_kv", n_heads):
            case tuple(per_layer):
                n_kv_heads = tuple(map(int, per_layer[:n_own]))
            case int(every_layer):
                n_kv_heads = (every_layer,) * n_own
            case _:
                return None
        return tuple(n * (key + value) * F16_BYTES for n in n_kv_heads)

    def may_slide(self, layer: int) -> bool:
        """Whether a layer may have a sliding window, if the model has one.

        A period n says that all but each n-th layer do. Where nothing is said, all may.
        """
        period = _SLIDING_PERIODS.get(self.architecture, 0)
        match self.metadata.get(f"{self.architecture}.attention.sliding_window_pattern", period):
            case tuple(per_layer) if layer < len(per_layer):
                return bool(per_layer[layer])
            case int(period) if period > 0:
                return layer % period < period - 1
            case _:
                return True

    def _least(self, name: str, default: int | None) -> int | None:
        sizes = (self.number(name) or default, self.number(f"{name}_swa"))
        return min((size for size in sizes if size), default=None)


def read_gguf(path: str) -> GGUFHeader:
    """Read the header, and check that the file holds every tensor it names.

    Raises:
        ModelMissing: there is no readable regular file at the path.
        BadModel: the file is not GGUF, is damaged, or is cut short.
    """
    try:
        # Not to wait for the writer of a FIFO, nor to take a terminal for our own.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ModelMissing(f"{path}: not a regular file")
            if status.st_size == 0:
                raise BadModel(f"{path}: the file is empty")
            with mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ) as view:
                return _read_header(path, GGUFCursor(path, view))
        finally:
            os.close(fd)
    except OSError as err:
        raise ModelMissing(f"{path}: {err.strerror} (errno {err.errno})") from err
    except ValueError as err:  # a NUL in the path
        raise ModelMissing(f"{path!r}: {err}") from err


def _read_header(path: str, cursor: GGUFCursor) -> GGUFHeader:
    magic = cursor.magic()
    if magic != b"GGUF":
        raise BadModel(f"{path}: not a GGUF file: begins with {magic!r}")
    version = cursor.take(U32)
    if version not in (2, 3):
        hint = " (big-endian?)" if version & 0xFFFF == 0 else ""
        raise BadModel(f"{path}: GGUF version {version}{hint}, 2 and 3 are known")
    n_tensors = cursor.count("tensors", 24, MAX_ENTRIES)
    metadata = _read_metadata(cursor, cursor.count("metadata entries", 13, MAX_ENTRIES))
    _check_tensors(cursor, n_tensors, metadata.get("general.alignment", 32))
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise BadModel(f"{path}: names no architecture")
    return GGUFHeader(cursor.size, version, architecture, n_tensors, metadata)


def _read_metadata(cursor: GGUFCursor, n_entries: int) -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    seen: set[str] = set()
    for number in range(n_entries):
        cursor.part = f"metadata entry {number + 1} of {n_entries}"
        key = cursor.name()
        if key in seen:
            raise cursor.corrupt(f"the key {key!r} is there twice")
        seen.add(key)
        cursor.part += f" ({key!r})"
        value = _read_value(cursor, cursor.take(U32))
        if value is not None:
            metadata[key] = value
    return metadata


def _read_value(cursor: GGUFCursor, kind: int) -> MetaValue | None:
    """Take one value; None if it is too long to keep."""
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _read_array(cursor, cursor.take(U32))
    if kind not in _SCALARS:
        raise cursor.corrupt(f"unknown value type {kind}")
    return cursor.unpack(_SCALARS[kind])[0]


def _read_array(cursor: GGUFCursor, kind: int) -> tuple[int | float, ...] | None:
    if kind == _STRING:
        cursor.skip_strings()
        return None
    if kind not in _SCALARS:
        raise cursor.corrupt(f"unknown element type {kind}")
    element = _SCALARS[kind]
    n_elements = cursor.count("elements", element.size, cursor.size)
    if n_elements > MAX_ARRAY:
        cursor.skip(n_elements * element.size)
        return None
    return cursor.unpack(struct.Struct(f"<{n_elements}{element.format[1:]}"))


def _check_tensors(cursor: GGUFCursor, n_tensors: int, alignment: MetaValue) -> None:
    """Compare the end of every tensor with the end of the file."""
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.corrupt(f"alignment {alignment!r} is not a power of two")
    ends: list[tuple[int, str]] = []
    for number in range(n_tensors):
        cursor.part = f"tensor {number + 1} of {n_tensors}"
        name = cursor.name()
        cursor.part += f" ({name!r})"
        ends.append((_tensor_end(cursor, alignment), name))
    start = -(-cursor.at // alignment) * alignment  # the data begins aligned, after the header
    missing = [(start + end, name) for end, name in ends if start + end > cursor.size]
    if missing:
        first_end, name = missing[0]
        cursor.part = f"tensor {name!r}, which ends at {first_end}"
        cursor.skip(max(missing)[0] - cursor.at)


def _tensor_end(cursor: GGUFCursor, alignment: int) -> int:
    """Take the rest of a tensor's entry; return where the tensor ends within the data."""
    n_dims = cursor.take(U32)
    if n_dims > MAX_DIMS:
        raise cursor.corrupt(f"{n_dims} dimensions, at most {MAX_DIMS}")
    n_values, row = 1, 1
    for dim in range(n_dims):
        extent = cursor.take(U64)
        row = extent if dim == 0 else row
        n_values *= extent
    kind, offset = cursor.take(U32), cursor.take(U64)
    if offset % alignment:
        raise cursor.corrupt(f"offset {offset} is not a multiple of {alignment}")
    per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
    if row % per_block:
        raise cursor.corrupt(f"a row of {row} values is not whole blocks of {per_block}")
    return offset + n_values // per_block * block_bytes
