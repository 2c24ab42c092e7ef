"""A load in a process of its own, and by how much it makes that process grow."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from runnerd.core.batch import Batch, BatchKind, KVRemove, SamplerClose, SamplerOpen, Span
from runnerd.core.sampling import Sampling
from runnerd.engine import open_engine, plan_engine
from runnerd.engine.base import Engine, EngineConfig
from runnerd.engine.llama.gguf import read_gguf
from runnerd.errors import DecodeAborted

TOKEN = 5
TOLERANCE = 0.05
ROOT = Path(__file__).parents[2]


def check_plan(config: EngineConfig, *, n_passes: int = 1) -> None:
    """Assert that a load takes what is planned, once a slot has had so many passes of rows."""
    plan = plan_engine(config)
    weights = sum(tensor.n_bytes for tensor in read_gguf(config.model).tensors.values())
    measured = growth_bytes(config, n_passes) + weights
    assert plan.needed_bytes == pytest.approx(measured, rel=TOLERANCE)


def growth_bytes(config: EngineConfig, n_passes: int) -> int:
    """Return the growth of anonymous memory by a load, whole passes of a slot, and one of slots.

    Weights that are mapped from the file come on top of it.
    """
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.engine.measured_load",
            json.dumps(asdict(config)),
            str(n_passes),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return int(finished.stdout.splitlines()[-1])


def anonymous_bytes() -> int:
    """Return what the process has of anonymous memory, in whole pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Anonymous:")]
    return int(line.split()[1]) << 10


def run(engine: Engine, spans: Sequence[Span]) -> None:
    """Run a pass, and sample from it."""
    engine.apply([SamplerOpen(span.seq_id, Sampling(), ()) for span in spans])
    while True:
        try:
            engine.decode(Batch(BatchKind.TOKENS, tuple(spans)))
            break
        except DecodeAborted:  # its threads have had no cores: again, with fewer
            engine.apply([KVRemove(span.slot_id, span.pos) for span in spans])
    engine.apply([SamplerClose(span.seq_id) for span in spans])


def main(config: EngineConfig, n_passes: int) -> None:
    """Load, and print the growth."""
    import runnerd.engine.llama.load  # noqa: F401 - the libraries are no part of a load

    before = anonymous_bytes()
    engine = open_engine(config, lambda phase, fraction: True)
    n_rows, most = 0, engine.limits.n_ctx - 1
    for _ in range(n_passes):
        n_more = min(config.n_ubatch, most - n_rows)
        run(engine, [Span(0, 0, n_rows, (TOKEN,) * n_more, True)])
        n_rows += n_more
    n_slots = engine.limits.n_slots
    run(engine, [Span(n, n, n_rows * (n == 0), (TOKEN,), True) for n in range(n_slots)])
    sys.stdout.write(f"{anonymous_bytes() - before}\n")


if __name__ == "__main__":
    import msgspec

    main(msgspec.json.decode(sys.argv[1], type=EngineConfig), int(sys.argv[2]))
