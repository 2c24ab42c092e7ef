"""The tensors that a GGUF file names: where each lies, of what shape and type it is."""

from dataclasses import dataclass
from math import prod

from runnerd.engine.llama.gguf_cursor import U32, U64, GGUFCursor

MAX_TAIL_BYTES = 2**30  # llama.cpp maps the whole file, and waits for all of it
MAX_DIMS = 4  # GGML_MAX_DIMS

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
_INTEGERS = range(24, 28)
_BLOCKS = {kind: block for block, kinds in _KINDS.items() for kind in kinds}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What a file says of a tensor. `extents` are in llama.cpp's order, `kind` is a ggml_type."""

    extents: tuple[int, ...]
    kind: int

    @property
    def is_real(self) -> bool:
        """Whether the values are no integers."""
        return self.kind not in _INTEGERS

    def extent(self, dim: int) -> int:
        """Return the size in a dimension; 1 in those that it has not."""
        return self.extents[dim] if dim < len(self.extents) else 1

    @property
    def n_bytes(self) -> int:
        """The size of the values; 0 for a type that is not known."""
        per_block, block_bytes = _BLOCKS.get(self.kind, (1, 0))
        return prod(self.extents) // per_block * block_bytes


def read_tensors(cursor: GGUFCursor, n_tensors: int, alignment: object) -> dict[str, TensorEntry]:
    """Take the entries, and compare the end of every tensor with the end of the file.

    Raises:
        BadModel: an entry makes no sense, or the file ends before a tensor does, or long after.
    """
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.corrupt(f"alignment {alignment!r} is not a power of two")
    tensors: dict[str, TensorEntry] = {}
    ends: list[tuple[int, str]] = []
    for number in range(n_tensors):
        cursor.part = f"tensor {number + 1} of {n_tensors}"
        name = cursor.name()
        cursor.part += f" ({name!r})"
        tensors[name], end = _read_tensor(cursor, alignment)
        ends.append((end, name))
    start = -(-cursor.at // alignment) * alignment  # the data begins aligned, after the header
    missing = [(start + end, name) for end, name in ends if start + end > cursor.size]
    if missing:
        first_end, name = missing[0]
        cursor.part = f"tensor {name!r}, which ends at {first_end}"
        cursor.skip(max(missing)[0] - cursor.at)
    n_behind = cursor.size - start - max(ends, default=(0, ""))[0]
    if n_behind > MAX_TAIL_BYTES and all(tensor.kind in _BLOCKS for tensor in tensors.values()):
        raise cursor.corrupt(f"{n_behind} bytes behind the last tensor, which nothing names")
    return tensors


def _read_tensor(cursor: GGUFCursor, alignment: int) -> tuple[TensorEntry, int]:
    """Take the rest of a tensor's entry; return it, and where the tensor ends within the data."""
    n_dims = cursor.take(U32)
    if n_dims > MAX_DIMS:
        raise cursor.corrupt(f"{n_dims} dimensions, at most {MAX_DIMS}")
    extents = tuple(cursor.take(U64) for _ in range(n_dims))
    kind, offset = cursor.take(U32), cursor.take(U64)
    if offset % alignment:
        raise cursor.corrupt(f"offset {offset} is not a multiple of {alignment}")
    per_block, _ = _BLOCKS.get(kind, (1, 0))
    entry = TensorEntry(extents, kind)
    if entry.extent(0) % per_block:
        raise cursor.corrupt(
            f"a row of {entry.extent(0)} values is not whole blocks of {per_block}"
        )
    return entry, offset + entry.n_bytes
