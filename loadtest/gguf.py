"""GGUF files, as far as a projector needs them: one is written, and a text model is read.

Source: gguf.h of ggml; block_q8_0 of ggml-common.h.
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Value = bool | int | float | str | Sequence[float]
Floats = npt.NDArray[np.float32]
Tensor = npt.NDArray[np.floating]  # written as halves if it is of halves, else as float32

ALIGNMENT = 32
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9  # value types
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of each
TYPE_F32, TYPE_F16 = 0, 1  # tensor types; 8 is Q8_0
BLOCK, BLOCK_BYTES = 32, 34  # of Q8_0: a half for the scale, then a byte for each value


def write_gguf(path: Path, entries: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> None:
    """Write a file; a tensor of zeros becomes a hole in it and takes no disk."""
    infos, at = b"", 0
    for name, tensor in tensors.items():
        kind = TYPE_F16 if tensor.dtype == np.float16 else TYPE_F32
        extents = tensor.shape[::-1]
        infos += _string(name) + struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
        infos += struct.pack("<IQ", kind, at)
        at += tensor.nbytes + -tensor.nbytes % ALIGNMENT
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries))
    head += b"".join(_string(key) + _value(value) for key, value in entries.items()) + infos
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for tensor in tensors.values():
            if tensor.any():
                file.write(tensor.tobytes())
                file.seek(-tensor.nbytes % ALIGNMENT, 1)
            else:
                file.seek(tensor.nbytes + -tensor.nbytes % ALIGNMENT, 1)
        file.truncate()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", U32, value)
        case float():
            return struct.pack("<If", F32, value)
        case str():
            return struct.pack("<I", STRING) + _string(value)
        case _:
            return struct.pack(f"<IIQ{len(value)}f", ARRAY, F32, len(value), *value)


@dataclass(frozen=True, slots=True)
class TextModel:
    """What a projector takes from a text model.

    `head_bytes` is where the header ends, before its padding; `embeddings_at` where the first
    token's embedding begins, of `n_embd` values that are stored as `embeddings_type` says.
    """

    path: Path
    architecture: str
    token_ids: Mapping[str, int]
    n_embd: int
    head_bytes: int
    embeddings_at: int
    embeddings_type: int

    def embeddings(self, tokens: Sequence[str]) -> Floats:
        """Return what the model puts in the place of each token.

        Raises:
            ValueError: the vocabulary has no such token, or the type is not known here.
        """
        missing = [token for token in tokens if token not in self.token_ids]
        if missing:
            raise ValueError(f"{self.path}: no single tokens: {missing}")
        return np.stack([self._embedding(self.token_ids[token]) for token in tokens])

    def _embedding(self, token: int) -> Floats:
        match self.embeddings_type:
            case 0:
                return self._read(token, 4 * self.n_embd).view("<f4")
            case 8:
                blocks = self._read(token, self.n_embd // BLOCK * BLOCK_BYTES)
                blocks = blocks.reshape(-1, BLOCK_BYTES)
                scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
                return np.ravel(scales * blocks[:, 2:].view(np.int8))
            case unknown:
                raise ValueError(f"{self.path}: embeddings of type {unknown}")

    def _read(self, token: int, n_bytes: int) -> npt.NDArray[np.uint8]:
        return np.fromfile(
            self.path, np.uint8, n_bytes, offset=self.embeddings_at + token * n_bytes
        )


def read_text_model(path: Path) -> TextModel:
    """Read vocabulary and whereabouts of the embeddings; the file is taken to be sound."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        walk = _Walk(view)
        walk.at = 8
        n_tensors, n_entries = walk.number("Q"), walk.number("Q")
        words: dict[str, list[str]] = {}
        for _ in range(n_entries):
            key = walk.string()
            words[key] = walk.strings()
        places: dict[str, tuple[int, int, int]] = {}
        for _ in range(n_tensors):
            name = walk.string()
            extents = [walk.number("Q") for _ in range(walk.number("I"))]
            places[name] = (extents[0], walk.number("I"), walk.number("Q"))
        n_embd, kind, offset = places["token_embd.weight"]
        start = walk.at + -walk.at % ALIGNMENT
        return TextModel(
            path=path,
            architecture=words["general.architecture"][0],
            token_ids={token: i for i, token in enumerate(words["tokenizer.ggml.tokens"])},
            n_embd=n_embd,
            head_bytes=walk.at,
            embeddings_at=start + offset,
            embeddings_type=kind,
        )


class _Walk:
    """A position in a file's header."""

    def __init__(self, view: mmap.mmap) -> None:
        self.at = 0
        self._view = view

    def number(self, layout: str) -> int:
        """Take a whole number."""
        (value,) = struct.unpack_from(f"<{layout}", self._view, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return int(value)

    def string(self) -> str:
        """Take a string."""
        n_bytes = self.number("Q")
        self.at += n_bytes
        return self._view[self.at - n_bytes : self.at].decode(errors="replace")

    def strings(self) -> list[str]:
        """Take a value of an entry; what is no string is passed over."""
        kind, count = self.number("I"), 1
        if kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
        if kind == STRING:
            return [self.string() for _ in range(count)]
        self.at += SIZES[kind] * count
        return []


def rename_tokens(model: TextModel, path: Path, names: Mapping[str, str]) -> None:
    """Write a copy of a model with other names for some tokens; all else stays as it is."""
    with model.path.open("rb") as source, path.open("wb") as target:
        head = source.read(model.head_bytes)
        for old, new in names.items():
            assert head.count(_string(old)) == 1, old
            head = head.replace(_string(old), _string(new))
        target.write(head + bytes(-len(head) % ALIGNMENT))
        source.seek(-model.head_bytes % ALIGNMENT, 1)
        while block := source.read(2**24):
            target.write(block)
