"""Files that are no projectors, each for one reason."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from loadtest.gguf import Tensor, Value
from loadtest.projector import Projector, Shape, make_projector
from tests.engine.vision_files import (
    VisionModel,
    folder,
    idefics3,
    phi4,
    qwen2vl,
    random_qwen2vl,
    smollm2,
    write,
)

T = TypeVar("T")

HAS_VISION = "clip.has_vision_encoder"


@cache
def broken_projectors() -> Mapping[str, str]:
    """Return paths of files that are no projectors for SmolLM2, by what is wrong with them."""
    sound = make_projector(Path(smollm2()), "phi4")
    changed: dict[str, Projector] = {
        "without a tensor": _changed(sound, without="v.blk.1.attn_out.weight"),
        "without a block": _changed(sound, {"clip.vision.block_count": 3}),
        "without heads": _changed(sound, {"clip.vision.attention.head_count": 0}),
        "of another width": _changed(sound, {"clip.vision.embedding_length": 32}),
        "of an unknown type": _changed(sound, {"clip.projector_type": "telepathy"}),
        "without a type": _changed(sound, without="clip.projector_type"),
        "without patches": _changed(sound, {"clip.vision.patch_size": 0}),
        "for images of no size": _changed(sound, {"clip.vision.image_size": 0}),
        "for images below a patch": _changed(sound, {"clip.vision.image_size": 15}),
        "with patches not in squares": _changed(
            random_qwen2vl(), {"clip.vision.spatial_merge_size": 1}
        ),
        "of DeepSeek": _changed(sound, {"clip.projector_type": "deepseek4v"}),
        "of Hunyuan": _changed(
            sound, {"clip.vision.projector_type": "hunyuanvl"}, without="clip.projector_type"
        ),
        "for sound only": _changed(sound, {"clip.has_audio_encoder": True}, without=HAS_VISION),
        "for another text model": Projector(
            {**sound.entries, "clip.vision.projection_dim": 320},
            {name: _narrow(name, tensor) for name, tensor in sound.tensors.items()},
        ),
        "of a text model": replace(sound, entries={"general.architecture": "llama"}),
    }
    paths = {name: write(name, projector) for name, projector in changed.items()}
    whole = Path(phi4().mmproj).read_bytes()
    ends = {"cut in its last tensor": whole[:-100], "cut in half": whole[: len(whole) // 2]}
    ends |= {"cut in its header": whole[:1000], "empty": b"", "not GGUF": b"PNG" * 100}
    for name, content in ends.items():
        path = folder() / f"{name}.gguf"
        path.write_bytes(content)
        paths[name] = str(path)
    return paths


@cache
def fatal_projectors() -> Mapping[str, VisionModel]:
    """Return models with projectors that llama.cpp aborts on: none of its checks finds them."""
    phi, model, tiles = make_projector(Path(smollm2()), "phi4"), qwen2vl().model, idefics3().model
    tiled = make_projector(Path(tiles), "idefics3", Shape(grid=2, longest_edge=128))
    changed = {
        "for images of no pixels": (smollm2(), phi, {"clip.vision.image_min_pixels": 0}),
        "without tiles": (tiles, tiled, {"clip.vision.projector.scale_factor": 1}),
        "with too many heads": (model, random_qwen2vl(), {"clip.vision.attention.head_count": 32}),
        "with a narrow layer": (model, _with_narrow_layer(random_qwen2vl()), {}),
    }
    return {
        name: VisionModel(model, write(name, _changed(projector, entries)))
        for name, (model, projector, entries) in changed.items()
    }


def _with_narrow_layer(projector: Projector) -> Projector:
    name = "v.blk.0.ffn_down.weight"
    return replace(projector, tensors={**projector.tensors, name: projector.tensors[name][:16]})


def _changed(
    projector: Projector, entries: Mapping[str, Value] | None = None, without: str = ""
) -> Projector:
    changed = {**projector.entries, **(entries or {})}
    return Projector(_less(changed, without), _less(projector.tensors, without))


def _less(parts: Mapping[str, T], name: str) -> dict[str, T]:
    return {key: part for key, part in parts.items() if key != name}


def _narrow(name: str, tensor: Tensor) -> Tensor:
    return tensor[:320] if name.startswith("mm.2.") else tensor
