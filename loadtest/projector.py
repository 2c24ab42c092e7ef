"""Projectors for small text models, made in seconds: pictures become the names of their colours.

A file holds twelve rows of its text model's embeddings, whose licence goes for it, too: it is
made where it is needed, and not kept.

    gemma3    each picture takes grid x grid rows, of one group that must share a forward pass
    phi4      a row per patch of 16 x 16 pixels: the size of a picture decides how many
    idefics3  an overview of grid x grid rows and, of larger pictures, tiles of as many each
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from loadtest.colours import EPSILON, LINEAR, NAME, NAMES, SHARPNESS, SILENT, Tower
from loadtest.gguf import (
    Floats,
    Tensor,
    TextModel,
    Value,
    read_text_model,
    rename_tokens,
    write_gguf,
)

Kind = Literal["gemma3", "phi4", "idefics3"]

PATCH = 16  # pixels
FILLER = "."  # what a silent row says
# Tokens of SmolLM2 that stand for nothing, for those that libmtmd looks up by name.
TILE_MARKS = {"<jupyter_script>": "<fake_token_around_image>", "<empty_output>": "<global-img>"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a projector.

    `grid`: rows per side of a picture, or of a tile. `speakers`: so many per side say a colour,
    0: all. `max_tokens`: of phi4, the most rows; larger pictures are made smaller.
    `longest_edge`: of idefics3, pixels to which a picture is scaled before it is cut into tiles.
    `n_hidden` and `n_blocks` above 64 and 2 change nothing but the time it takes.
    """

    grid: int = 8
    speakers: int = 0
    max_tokens: int = 1024
    longest_edge: int = 0
    n_hidden: int = 64
    n_blocks: int = 2


HEAVY = Shape(n_hidden=768, n_blocks=12)
"""The size of real towers: about a third of a second for 256 rows, on two cores."""


@dataclass(frozen=True, slots=True)
class Projector:
    """What a projector's file holds: metadata, and tensors by name."""

    entries: Mapping[str, Value]
    tensors: Mapping[str, Tensor]

    def write(self, path: Path) -> Path:
        """Write the file; return its path."""
        write_gguf(path, self.entries, self.tensors)
        return path


def make_projector(text_model: Path, kind: Kind, shape: Shape = Shape()) -> Projector:
    """Return a projector for a text model that has the names of colours as single tokens.

    Raises:
        ValueError: the text model has not, or the grid is no multiple of the speakers.
    """
    if shape.speakers and shape.grid % shape.speakers:
        raise ValueError(f"a grid of {shape.grid} is no multiple of {shape.speakers} speakers")
    rows = _rows(read_text_model(text_model))
    tower = Tower(PATCH, shape.n_hidden, shape.n_blocks)
    tensors = dict(tower.tensors())
    merge = 2 if kind == "idefics3" else 1
    if kind == "phi4":  # resized to the picture; none would not do
        tensors["v.position_embd.weight"] = np.zeros((1, shape.n_hidden), np.float32)
    if shape.speakers:
        tensors["v.position_embd.weight"] = tower.silence(shape.grid, merge, shape.speakers)
    tensors |= _head(kind, rows, shape.n_hidden, merge)
    side = shape.grid * merge * PATCH
    vision: dict[str, Value] = {
        "image_size": side,
        "patch_size": PATCH,
        "embedding_length": shape.n_hidden,
        "feed_forward_length": tower.n_units,
        "block_count": shape.n_blocks,
        "attention.head_count": shape.n_hidden // 64,
        "attention.layer_norm_epsilon": EPSILON,
        "projection_dim": rows.shape[1],
        "projector.scale_factor": merge,
        "preproc_image_size": shape.longest_edge or side,
        "image_min_pixels": PATCH**2,
        "image_max_pixels": shape.max_tokens * PATCH**2,
        "image_mean": (0.0, 0.0, 0.0),
        "image_std": (1.0, 1.0, 1.0),
    }
    entries: dict[str, Value] = {
        "general.architecture": "clip",
        "general.name": f"names of colours ({kind})",
        "clip.projector_type": kind,
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        **{f"clip.vision.{key}": value for key, value in vision.items()},
    }
    return Projector(entries, tensors)


def write_tile_model(path: Path, text_model: Path) -> Path:
    """Write a copy of SmolLM2 whose vocabulary has the marks that idefics3 puts around tiles."""
    rename_tokens(read_text_model(text_model), path, TILE_MARKS)
    return path


def _rows(model: TextModel) -> Floats:
    """Return a row per name, and the filler's."""
    marks = ("\u2581", "\u0120")
    space = next((mark for mark in marks if f"{mark}red" in model.token_ids), " ")
    rows = model.embeddings([*(space + name for name in NAMES), FILLER])
    # Gemma's graph scales the embeddings of tokens, but not rows that come from outside.
    return rows * np.float32(model.n_embd**0.5) if "gemma" in model.architecture else rows


def _head(kind: Kind, rows: Floats, n_hidden: int, merge: int) -> dict[str, Tensor]:
    """Return the tensors that make rows of names."""
    head = np.zeros((n_hidden, rows.shape[1]), np.float32)
    head[NAME : SILENT + 1] = rows
    match kind:
        case "gemma3":
            return {
                "mm.soft_emb_norm.weight": np.full(n_hidden, LINEAR, np.float32),
                "mm.input_projection.weight": head.astype(np.float16),
            }
        case "phi4":
            return {
                "mm.0.weight": np.float32(SHARPNESS) * np.eye(n_hidden, dtype=np.float32),
                "mm.0.bias": np.zeros(n_hidden, np.float32),
                "mm.2.weight": _transposed(head / SHARPNESS),
                "mm.2.bias": np.zeros(rows.shape[1], np.float32),
            }
        case "idefics3":  # sees merge x merge patches at once
            return {"mm.model.fc.weight": _transposed(np.tile(head, (merge**2, 1)) / merge**2)}


def _transposed(weights: Tensor) -> Tensor:
    return np.ascontiguousarray(weights.T, np.float16)
