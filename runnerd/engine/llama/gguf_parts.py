"""A model in several files: the first has the metadata, and each has some of the tensors.

Source: llama.h, llama_split_path.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.gguf_tensors import TensorEntry
from runnerd.errors import BadModel, ModelMissing

_FIRST = re.compile(r"(?P<prefix>.*)-00001-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def with_all_parts(path: str, header: GGUFHeader) -> GGUFHeader:
    """Return the header of a model's first file with the tensors of all its files.

    Raises:
        BadModel, ModelMissing: as `read_parts`.
    """
    return joined(read_parts(path, header))


def joined(parts: Mapping[str, GGUFHeader]) -> GGUFHeader:
    """Return the header of the first of a model's files with the tensors of all."""
    first, *others = parts.values()
    if not others:
        return first
    tensors: dict[str, TensorEntry] = {}
    for part in parts.values():
        tensors |= part.tensors
    return replace(first, tensors=tensors)


def read_parts(path: str, header: GGUFHeader) -> dict[str, GGUFHeader]:
    """Return the headers of all files of a model by their paths, given the first one's.

    Raises:
        BadModel, ModelMissing: it is not the first, or one of the others is bad or not there.
    """
    parts = {path: header}
    paths = _paths(path, header)
    for number, later in enumerate(paths[1:], 2):
        try:
            parts[later] = read_gguf(later)
        except ModelMissing as err:
            raise ModelMissing(f"{err}: file {number} of {len(paths)} of the model") from err
    return parts


def _paths(path: str, header: GGUFHeader) -> tuple[str, ...]:
    number, n_parts = header.metadata.get("split.no", 0), header.metadata.get("split.count", 1)
    if isinstance(number, int) and number > 0:
        raise BadModel(f"{path}: file {number + 1} of {n_parts} of a model: give the first one")
    first = _FIRST.fullmatch(path)
    if first is None or not isinstance(n_parts, int) or int(first["count"]) != n_parts:
        return (path,)
    later = range(2, n_parts + 1)
    return (path, *(f"{first['prefix']}-{each:05}-of-{first['count']}.gguf" for each in later))
