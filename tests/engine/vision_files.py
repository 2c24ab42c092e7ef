"""Vision models for tests: a text model and its projector, made once per run of the tests.

All but those with random weights know colours: see `loadtest.projector`.
"""

import atexit
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np
import pytest

from loadtest.colours import NAMES
from loadtest.gguf import Value
from loadtest.projector import HEAVY, Kind, Projector, Shape, make_projector, write_tile_model
from tests.engine import gemma as gemma_files
from tests.engine.llama_builders import MODEL
from tests.engine.tiny_models import N_EMBD
from tests.engine.tiny_models import gemma3 as gemma3_text
from tests.engine.tiny_models import qwen2vl as qwen2vl_text

needs_gemma = pytest.mark.skipif(not gemma_files.is_installed(), reason="Gemma is not installed")


@dataclass(frozen=True, slots=True)
class VisionModel:
    """Paths of a model and of a projector that belong together."""

    model: str
    mmproj: str


@cache
def phi4(max_tokens: int = 1024) -> VisionModel:
    """SmolLM2, causal; a row for each 16 x 16 pixels."""
    return _smollm2("phi4", Shape(max_tokens=max_tokens))


@cache
def heavy(max_tokens: int = 1024) -> VisionModel:
    """The same, at the pace of real projectors: 256 x 256 pixels take a third of a second."""
    return _smollm2("phi4", replace(HEAVY, max_tokens=max_tokens))


@cache
def idefics3() -> VisionModel:
    """SmolLM2 with marks, causal; 4 rows, or of more than 64 pixels 4 rows for each of 5 tiles."""
    model = write_tile_model(folder() / "tiles.gguf", Path(smollm2()))
    projector = make_projector(model, "idefics3", Shape(grid=2, longest_edge=128))
    return VisionModel(str(model), write("idefics3", projector))


@cache
def gemma3(grid: int = 8, speakers: int = 2) -> VisionModel:
    """Gemma 3 270M; grid x grid rows of an image of any size, which must share a pass."""
    projector = make_projector(Path(gemma()), "gemma3", Shape(grid=grid, speakers=speakers))
    return VisionModel(gemma(), write(f"gemma3-{grid}", projector))


@cache
def qwen2vl() -> VisionModel:
    """Random weights and M-RoPE: w x h rows, for each 16 x 16 pixels, take max(w, h) positions."""
    return VisionModel(qwen2vl_text(folder()), write("qwen2vl", random_qwen2vl()))


@cache
def tiny_gemma3() -> VisionModel:
    """Random weights; 16 rows of an image of any size, which must share a pass."""
    return _tiny("gemma3", Shape(grid=4), ["<start_of_image>", "<end_of_image>"])


@cache
def tiny_idefics3() -> VisionModel:
    """Random weights; like `idefics3`, with a token for each mark."""
    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    marks = ["<fake_token_around_image>", "<global-img>", *tiles]
    return _tiny("idefics3", Shape(grid=2, longest_edge=128), marks)


@cache
def gemma() -> str:
    """Return the path of Gemma 3 270M."""
    path = gemma_files.gemma(folder())
    assert path is not None
    return path


def smollm2() -> str:
    """Return the path of SmolLM2."""
    assert MODEL is not None
    return MODEL


def _tiny(kind: Kind, shape: Shape, marks: Sequence[str]) -> VisionModel:
    words = [*(f"\u2581{name}" for name in NAMES), ".", "\n\n"]
    model = gemma3_text(folder() / f"tiny-{kind}.gguf", marks, words)
    return VisionModel(model, write(f"tiny-{kind}", make_projector(Path(model), kind, shape)))


def _smollm2(kind: Kind, shape: Shape) -> VisionModel:
    name = f"{kind}-{shape.n_hidden}-{shape.max_tokens}"
    return VisionModel(smollm2(), write(name, make_projector(Path(smollm2()), kind, shape)))


def write(name: str, projector: Projector) -> str:
    """Write a projector for this run of the tests; return its path."""
    return str(projector.write(folder() / f"{name}.mmproj.gguf"))


@cache
def folder() -> Path:
    """Return a folder that lasts as long as this run of the tests."""
    path = mkdtemp(prefix="runnerd-vision-")
    atexit.register(rmtree, path, ignore_errors=True)
    return Path(path)


def random_qwen2vl() -> Projector:
    """Return a projector for the model of `qwen2vl`."""
    n_hidden, n_units, n_blocks, patch = 32, 48, 2, 8
    extents = {
        # A still image counts as two frames of a video.
        "v.patch_embd.weight": (n_hidden, 3, patch, patch),
        "v.patch_embd.weight.1": (n_hidden, 3, patch, patch),
        **_layer("mm.0", 4 * n_hidden, 64),
        **_layer("mm.2", 64, N_EMBD),
    }
    for block in range(n_blocks):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            extents |= _layer(f"v.blk.{block}.{name}", n_hidden, n_hidden)
        extents |= _layer(f"v.blk.{block}.ffn_up", n_hidden, n_units)
        extents |= _layer(f"v.blk.{block}.ffn_down", n_units, n_hidden)
        for name in ("ln1", "ln2"):
            extents |= {f"v.blk.{block}.{name}.{part}": (n_hidden,) for part in ("weight", "bias")}
    random = np.random.default_rng(4)
    tensors = {name: random.normal(0.0, 0.3, shape) for name, shape in extents.items()}
    tensors["mm.2.weight"] /= 50  # no larger than what the text model makes of a token
    vision: dict[str, Value] = {
        "image_size": 8 * patch,
        "patch_size": patch,
        "embedding_length": n_hidden,
        "feed_forward_length": n_units,
        "block_count": n_blocks,
        "attention.head_count": 2,
        "attention.layer_norm_epsilon": 1e-5,
        "projection_dim": N_EMBD,
        "image_mean": (0.5, 0.5, 0.5),
        "image_std": (0.5, 0.5, 0.5),
    }
    entries: dict[str, Value] = {
        "general.architecture": "clip",
        "clip.projector_type": "qwen2vl_merger",
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        **{f"clip.vision.{key}": value for key, value in vision.items()},
    }
    return Projector(entries, {name: each.astype(np.float32) for name, each in tensors.items()})


def _layer(name: str, n_in: int, n_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}
