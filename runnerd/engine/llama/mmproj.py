"""The file of a projector, checked before libmtmd sees it: some mistakes would end the process.

Source: clip.cpp, what clip_init reads and what the graphs divide by.
"""

import re

import psutil

from runnerd.engine.llama.gguf import GGUFHeader, MetaValue, read_gguf
from runnerd.engine.llama.gguf_tensors import MAX_DIMS
from runnerd.errors import BadModel, OutOfMemory

ARCHITECTURE = "clip"
_PATCHES = "v.patch_embd.weight"
# Images of the one are filled up to whole groups of inputs, counted from the prompt's start, and
# of the other numbered.
_PLACE_BOUND = ("deepseek4v", "hunyuanvl")
_ANY_SIZE = ("dots_ocr", "dots3note_v")  # their files say 0 for the size of an image
# They write the positions of patches in squares of 2 x 2, whatever the file says, and for smaller
# ones beyond the end of their memory.
_PAIRED = (
    "qwen2vl_merger",
    "qwen2.5vl_merger",
    "qwen2.5o",
    "qwen3vl_merger",
    "ling3vl",
    "glm4v",
    "glm5v",
    "exaone4_5",
    "youtuvl",
)
# Tensors whose first extent is the embedding's length. Files exist that name the two halves of a
# feed-forward net the other way round, so those are not among them.
_AS_LONG = re.compile(
    r"v\.position_embd\.weight|v\.blk\.\d+\.(ln1|ln2|attn_q|attn_k|attn_v|attn_qkv)\.weight"
)


def check_mmproj(path: str) -> GGUFHeader:
    """Read the header of a projector, and refuse what libmtmd would not survive.

    That it fits the model is checked by libmtmd, which compares the tensors.

    Raises:
        ModelMissing: there is no readable regular file at the path.
        BadModel: it is no projector for images, is damaged, or contradicts itself.
        OutOfMemory: it does not fit in what memory there is.
    """
    header = read_gguf(path)
    if header.architecture != ARCHITECTURE:
        raise BadModel(f"{path}: not a projector: the architecture is {header.architecture!r}")
    if not header.metadata.get("clip.has_vision_encoder"):
        raise BadModel(f"{path}: a projector, but not one for images")
    _check_type(path, header)
    _check_sizes(path, header)
    _check_tensors(path, header)
    available: int = psutil.virtual_memory().available
    if header.size_bytes > available:  # it is read, not mapped
        raise OutOfMemory(
            f"{path}: a projector of {header.size_bytes} bytes, {available} bytes are available"
        )
    return header


def _check_type(path: str, header: GGUFHeader) -> None:
    """Refuse projectors of which what an image becomes depends on what stands before it."""
    kind = _type(header)
    if kind in _PLACE_BOUND:
        raise BadModel(
            f"{path}: a projector of type {kind!r}: images depend on where in the prompt they are"
        )


def _type(header: GGUFHeader) -> MetaValue | None:
    metadata = header.metadata
    return metadata.get("clip.projector_type") or metadata.get("clip.vision.projector_type")


def _size(header: GGUFHeader, name: str) -> int | None:
    return header.number(f"vision.{name}")


def _check_sizes(path: str, header: GGUFHeader) -> None:
    for name in ("embedding_length", "attention.head_count", "block_count", "patch_size"):
        value = _size(header, name)
        if value is None or value < 1:
            raise BadModel(f"{path}: clip.vision.{name} is {value}, expected 1 or more")
    square = _size(header, "spatial_merge_size")
    if square not in (None, 2) and _type(header) in _PAIRED:
        raise BadModel(f"{path}: clip.vision.spatial_merge_size is {square}, expected 2")
    side, patch = _size(header, "image_size"), _size(header, "patch_size") or 0
    is_any = side == 0 and _type(header) in _ANY_SIZE
    if side is not None and side < patch and not is_any:  # without one libmtmd refuses the file
        raise BadModel(f"{path}: clip.vision.image_size is {side}, less than a patch of {patch}")
    n_embd, n_heads = _size(header, "embedding_length"), _size(header, "attention.head_count")
    if n_embd and n_heads and n_embd % n_heads and not _size(header, "attention.head_dim"):
        raise BadModel(f"{path}: {n_embd} values of an embedding over {n_heads} heads")
    merge = _size(header, "projector.scale_factor")
    if merge is not None and merge < 1:
        raise BadModel(f"{path}: clip.vision.projector.scale_factor is {merge}, expected 1 or more")


def _check_tensors(path: str, header: GGUFHeader) -> None:
    """Compare the embedding's length, and the size of a patch, with those of the tensors."""
    for name, tensor in header.tensors.items():
        if _AS_LONG.fullmatch(name):
            _expect(path, header, "embedding_length", name, tensor.extent(0))
        elif name == _PATCHES and len(tensor.extents) == MAX_DIMS:  # width, height, colour, value
            _expect(path, header, "patch_size", name, tensor.extent(0))
            _expect(path, header, "embedding_length", name, tensor.extent(3))


def _expect(path: str, header: GGUFHeader, key: str, name: str, extent: int) -> None:
    value = _size(header, key)
    if extent != value:
        raise BadModel(f"{path}: clip.vision.{key} is {value}, the tensor {name!r} has {extent}")
