"""What a soak runs on: a model, and an adapter and a projector for it where they can be made."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from msgspec import Struct

from loadtest.gguf import read_text_model, write_gguf
from loadtest.projector import make_projector
from loadtest.toy import FEW_ROWS
from runnerd.models import DEFAULT_MODEL, resolve_model

REFERENCE = "layers=1,dim=16,heads=2"
RANK = 4

EngineName = Literal["llama", "reference"]


class SoakSetup(Struct, frozen=True):
    """A model, and further options of `runnerd serve`."""

    model: str
    options: list[str]
    knows_schemas: bool = True


@contextmanager
def soak_setup(
    engine: EngineName, model: str | None, projector: Path | None
) -> Iterator[SoakSetup]:
    """Lend what to soak; for the default model an adapter and a projector are made."""
    options = [f"--engine={engine}"]
    if engine == "reference":
        options += ["--image-rows=16", "--lora=verse=-"]
        yield SoakSetup(model or REFERENCE, options, knows_schemas=False)
        return
    name = model or DEFAULT_MODEL
    with TemporaryDirectory(prefix="loadtest-") as folder:
        if name == DEFAULT_MODEL:
            path = Path(resolve_model(name))
            options.append(f"--lora=verse={write_adapter(path, Path(folder, 'verse.gguf'))}")
            if projector is None:
                made = make_projector(path, "phi4", FEW_ROWS)
                projector = made.write(Path(folder, "mmproj.gguf"))
        if projector is not None:
            options.append(f"--mmproj={projector}")
        yield SoakSetup(name, options)


def write_adapter(model: Path, path: Path) -> Path:
    """Write a LoRA adapter that changes at random what a model's first layer attends to."""
    base = read_text_model(model)
    rng = np.random.default_rng(1)
    shapes = {"lora_a": (RANK, base.n_embd), "lora_b": (base.n_embd, RANK)}
    write_gguf(
        path,
        {
            "general.architecture": base.architecture,
            "general.type": "adapter",
            "adapter.type": "lora",
            "adapter.lora.alpha": 2.0 * RANK,
        },
        {
            f"blk.0.attn_q.weight.{name}": rng.normal(0.0, 0.02, shape).astype(np.float32)
            for name, shape in shapes.items()
        },
    )
    return path
