"""The header of a GGUF file, read without loading anything, to refuse bad files early.

Only scalars, short strings and short arrays are kept; a vocabulary is passed over.

Source: gguf.h and gguf.cpp of ggml; versions 2 and 3 have the same layout.
"""

import errno
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runnerd.engine.base import KVType
from runnerd.engine.llama.gguf_cursor import U32, U64, GGUFCursor
from runnerd.engine.llama.gguf_tensors import TensorEntry, read_tensors
from runnerd.errors import BadModel, ModelMissing, OutOfMemory

Scalar = int | float | str
MetaValue = Scalar | tuple[int | float, ...]

MAX_ARRAY = 1024  # per-layer lists are kept
MAX_ENTRIES = 1 << 17  # tensors, or keys
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS: with more, llama.cpp ends the process
# Of architectures whose files need not say it; as llama.cpp sets them in load_arch_hparams.
_SLIDING_PERIODS = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2}
_RECURRENT = (".ssm.", ".full_attention_interval", ".wkv.", ".shortconv.", ".kda.")
# Lists of whole numbers: with a list of others, llama.cpp ends the process.
_PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
KV_BLOCK = 32  # values of a head that a KV cache stores together
KV_BLOCK_BYTES: dict[KVType, int] = {"f16": 64, "q8_0": 34, "q4_0": 18}

FLOAT32 = 6  # as all of these, a gguf_type
_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate(map(struct.Struct, ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))))
_SCALARS |= {10: U64, 11: struct.Struct("<q"), 12: struct.Struct("<d")}


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says about itself; long strings and arrays are left out.

    `kinds` has the types of all values, also of those left out.
    """

    size_bytes: int
    version: int
    architecture: str
    n_tensors: int
    metadata: Mapping[str, MetaValue]
    kinds: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """Return the architecture's whole number of that name ("context_length")."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int) else None

    @property
    def keeps_states(self) -> bool:
        """Whether some layers keep recurrent states in place of cells."""
        return any(word in key for key in self.metadata for word in _RECURRENT)

    def kv_bytes_per_input(self, kv_type: KVType = "f16") -> int | None:
        """Return what one cell of the KV cache takes at least over all layers."""
        per_layer = self.kv_bytes_per_layer(kv_type)
        return None if per_layer is None else sum(per_layer)

    def kv_bytes_per_layer(self, kv_type: KVType = "f16") -> tuple[int, ...] | None:
        """Return what one cell of the KV cache takes at least, of each layer.

        Exact for plain keys and values. Latent attention is taken to keep keys alone, and of
        two sizes of heads (of layers with a sliding window, and of others) the smaller counts.
        None where the metadata does not tell, or layers keep recurrent state.
        """
        if self.keeps_states:
            return None
        n_layers, n_heads = self.number("block_count"), self.number("attention.head_count")
        key = min(self.head_sizes("key"), default=None)
        value = min(self.head_sizes("value"), default=None)
        if n_layers is None or key is None or value is None:
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
        block_bytes = KV_BLOCK_BYTES[kv_type]
        return tuple(n * (key + value) * block_bytes // KV_BLOCK for n in n_kv_heads)

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

    @property
    def mostly_slides(self) -> bool:
        """Whether most layers are known to have a sliding window, if the model has one."""
        is_known = (
            self.architecture in _SLIDING_PERIODS
            or f"{self.architecture}.attention.sliding_window_pattern" in self.metadata
        )
        n_layers = self.number("block_count") or 0
        return is_known and 2 * sum(map(self.may_slide, range(n_layers))) > n_layers

    def head_sizes(self, part: Literal["key", "value"]) -> list[int]:
        """Return how many values the keys, or the values, of a head have; layers can differ."""
        n_embd, n_heads = self.number("embedding_length"), self.number("attention.head_count")
        default = n_embd // n_heads if n_embd is not None and n_heads else None
        name = f"attention.{part}_length"
        sizes = (self.number(name) or default, self.number(f"{name}_swa"))
        return [size for size in sizes if size]


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
        if err.errno == errno.ENOMEM:
            raise OutOfMemory(f"{path}: no memory to map it: {err.strerror}") from err
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
    n_entries = cursor.count("metadata entries", 13, MAX_ENTRIES)
    metadata, kinds = _read_metadata(cursor, n_entries)
    tensors = read_tensors(cursor, n_tensors, metadata.get("general.alignment", 32))
    is_later_part = metadata.get("split.no", 0) != 0  # of a model in several files
    architecture = metadata.get("general.architecture", "" if is_later_part else None)
    if not isinstance(architecture, str):
        raise BadModel(f"{path}: names no architecture")
    header = GGUFHeader(cursor.size, version, architecture, n_tensors, metadata, kinds, tensors)
    n_layers = header.number("block_count")
    if n_layers is not None and not 1 <= n_layers <= MAX_LAYERS:
        raise BadModel(f"{path}: {n_layers} layers, llama.cpp has 1 to {MAX_LAYERS}")
    for name in _PER_LAYER:
        per_layer = metadata.get(f"{architecture}.{name}")
        if isinstance(per_layer, tuple) and not all(isinstance(n, int) for n in per_layer):
            raise BadModel(f"{path}: {architecture}.{name} is not made of whole numbers")
    return header


def _read_metadata(
    cursor: GGUFCursor, n_entries: int
) -> tuple[dict[str, MetaValue], dict[str, int]]:
    """Take the entries; return the values that are kept, and the types of all."""
    metadata: dict[str, MetaValue] = {}
    kinds: dict[str, int] = {}
    for number in range(n_entries):
        cursor.part = f"metadata entry {number + 1} of {n_entries}"
        key = cursor.name()
        if key in kinds:
            raise cursor.corrupt(f"the key {key!r} is there twice")
        cursor.part += f" ({key!r})"
        kinds[key] = cursor.take(U32)
        value = _read_value(cursor, kinds[key])
        if value is not None:
            metadata[key] = value
    return metadata, kinds


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
