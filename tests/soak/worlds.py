"""The engines of a soak: what the model is like, and how its cache is laid out and how short."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions

ADAPTERS = ("formal", "rhyme")


@dataclass(frozen=True, slots=True)
class World:
    """An engine that can be made again and again, always the same."""

    kind: Literal["plain", "fixed", "window", "recurrent"]
    kv: Literal["split", "unified"]
    n_slots: int = 5
    n_ctx: int = 96
    n_cells: int = 0
    n_batch: int = 40
    n_ubatch: int = 16

    @property
    def name(self) -> str:
        """What to call it on a command line."""
        return f"{self.kind}-{'short' if self.n_cells else self.kv}"

    @property
    def options(self) -> ReferenceOptions:
        """The model's options: small, and of few layers, so that a step costs little."""
        layers = 2 if self.kind in ("window", "recurrent") else 1
        return ReferenceOptions(
            layers=layers,
            dim=8,
            heads=2,
            shift=self.kind == "plain",
            window=20 if self.kind == "window" else 0,
            recurrent=self.kind == "recurrent",
        )

    def of_other_size(self, rng: Random) -> "World":
        """Return the same kind of world with more or fewer slots, cells and rows."""
        n_slots = rng.choice((1, 2, 3, 8, 16))
        n_ctx = rng.choice((48, 64, 128, 200))
        n_batch = max(n_slots, rng.choice((13, 20, 40, 128)))
        n_cells = min(n_ctx + rng.choice((0, 1, 16, 100)), n_slots * n_ctx)
        return replace(
            self,
            n_slots=n_slots,
            n_ctx=n_ctx,
            n_cells=n_cells if self.n_cells else 0,
            n_batch=n_batch,
            n_ubatch=min(n_batch, rng.choice((12, 16, 64))),
        )

    @contextmanager
    def engine(self) -> Iterator[ReferenceEngine]:
        """Make an engine for a `with` block."""
        config = EngineConfig(
            "",
            "reference",
            n_slots=self.n_slots,
            n_ctx=self.n_ctx,
            n_cells=self.n_cells,
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            kv=self.kv,
            adapters=tuple((name, name) for name in ADAPTERS),
        )
        engine = ReferenceEngine(config, self.options, _ignore)
        try:
            yield engine
        finally:
            engine.close()


_ignore: LoadProgress = lambda phase, fraction: True  # noqa: E731


def _worlds() -> Iterator[World]:
    for kind in ("plain", "fixed", "window", "recurrent"):
        n_ctx = 96 if kind in ("plain", "fixed") else 256  # checkpoints lie 64 inputs apart
        yield World(kind, "split", n_ctx=n_ctx)
        yield World(kind, "unified", n_ctx=n_ctx)
        yield World(kind, "unified", n_ctx=n_ctx, n_cells=n_ctx + 16)


WORLDS = {world.name: world for world in _worlds()}
