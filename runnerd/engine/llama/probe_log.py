"""What llama.cpp's log of a load tells of sizes, and of which layer is where.

A cache lists its layers, line by line, before the line that ends it with its size. Sizes have
two decimals of a MiB, and so are exact to 5 KiB.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MIB = 1 << 20
ROUNDING_BYTES = MIB // 200 + 1

_LAYER = re.compile(r"layer +(\d+) assigned to device ([^\s,]+)(?:, is_swa = (\d))?")
_BUFFER = re.compile(r": +(\S+) +(model|KV|RS|compute|output) +buffer size = +([\d.]+) MiB")
_CACHED = re.compile(r"_(?:cache|recurrent)\w*[:,] layer +(\d+): dev = (\S+)")
_CACHE = re.compile(r"_(cache|recurrent)\w*: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers")


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A cache: `layers` are those with cells, or states, of their own; `n_cells` of a stream."""

    n_bytes: int
    n_cells: int
    layers: tuple[int, ...]
    has_states: bool = False


@dataclass(slots=True)
class LoadSizes:
    """What was found. Buffers are by llama.cpp's names for them ("CUDA0", "CPU_REPACK").

    `devices` are those of layers, the output layer's number comes after the last block's.
    """

    devices: dict[int, str] = field(default_factory=dict)
    sliding: set[int] = field(default_factory=set)
    caches: list[CacheSize] = field(default_factory=list)
    model: dict[str, int] = field(default_factory=dict)
    kv: dict[str, int] = field(default_factory=dict)
    compute: dict[str, int] = field(default_factory=dict)
    output: dict[str, int] = field(default_factory=dict)

    @property
    def copied_bytes(self) -> int:
        """What weights take that are in main memory a second time, as the CPU reads them best."""
        # "CPU" alone are weights that were read instead of mapped.
        others = ("CPU", "CPU_Mapped")
        return sum(
            n_bytes
            for name, n_bytes in self.model.items()
            if name.startswith("CPU") and name not in others
        )


def read_sizes(lines: Iterable[str]) -> LoadSizes:
    """Read the log of a load, as far as it came."""
    sizes = LoadSizes()
    cached: list[int] = []
    for line in lines:
        if found := _LAYER.search(line):
            layer = int(found[1])
            sizes.devices[layer] = found[2]
            if found[3] == "1":
                sizes.sliding.add(layer)
        elif found := _BUFFER.search(line):
            _add_buffer(sizes, found[1], found[2], _bytes(found[3]))
        elif found := _CACHED.search(line):
            cached.append(int(found[1]))
        elif found := _CACHE.search(line):
            has_states = found[1] == "recurrent"
            size = CacheSize(_bytes(found[2]), int(found[3]), tuple(cached), has_states)
            sizes.caches.append(size)
            cached.clear()
    return sizes


def _add_buffer(sizes: LoadSizes, name: str, kind: str, n_bytes: int) -> None:
    """Keep a size: those of a model and of caches add up, of the rest the last one holds."""
    match kind:
        case "model":
            sizes.model[name] = sizes.model.get(name, 0) + n_bytes
        case "KV" | "RS":
            sizes.kv[name] = sizes.kv.get(name, 0) + n_bytes
        case "compute":
            sizes.compute[name] = n_bytes
        case _:
            sizes.output[name] = n_bytes


def _bytes(mib: str) -> int:
    return round(float(mib) * MIB)
