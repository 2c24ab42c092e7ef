"""Requests run through a batcher and the reference engine, step by step, against oracles.

The reference engine is exact, so with others every request says what it says alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from runnerd.core.batch import Edit
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.prompt import Part, Prompt, TextPart
from runnerd.core.sequence import Options, admit
from runnerd.engine.base import run_step
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions
from tests.engine.reference_builders import SMALL, reference

Request = tuple[Prompt, Options]
Said = dict[int, list[int]]

TINY = ("tiny", "other")  # the adapters of every machine


@contextmanager
def machine(
    options: ReferenceOptions = SMALL,
    *,
    n_slots: int = 1,
    n_ctx: int = 48,
    n_cells: int = 0,
    n_batch: int = 40,
    n_ubatch: int = 16,
    kv: Literal["auto", "split", "unified"] = "auto",
) -> Iterator[ReferenceEngine]:
    """Make an engine for a `with` block."""
    with reference(
        options,
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=n_cells,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        kv=kv,
        adapters=TINY,
    ) as engine:
        yield engine


def expanded(*parts: Part) -> Prompt:
    """Expand parts into a prompt, BOS included."""
    with machine(ReferenceOptions(layers=0)) as engine:
        return engine.expand(parts)


def expand(text: str) -> Prompt:
    """Expand special text, images among it, into a prompt."""
    return expanded(TextPart(text, special=True))


class Drive:
    """Runs requests through a batcher and an engine; collects each one's tokens and end."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self.engine = engine
        self.batcher = Batcher(engine.limits, engine, target_itl_s=0.05)
        self.tokens: Said = {}
        self.endings: dict[int, str] = {}
        self.edits: Counter[type[Edit]] = Counter()
        self.n_cached: Counter[int] = Counter()
        self.n_backed_off = 0
        self.n_aborted = 0
        self.n_suspended = 0

    def submit(self, seq_id: int, request: Request) -> None:
        self.tokens[seq_id] = []
        self.batcher.submit(admit(seq_id, *request, self.engine.limits, 0.0))

    def step(self, elapsed_s: float = 0.01) -> bool:
        """Run a step; return whether there was one."""
        batcher = self.batcher
        step = batcher.plan(0.0)
        batcher.check()
        if step is None:
            return False
        self.edits.update(map(type, step.edits))
        result = run_step(self.engine, step)
        self.n_aborted += result.is_aborted
        if result.is_aborted or result.n_batches == len(step.batches):
            self._hear(batcher.commit(step, result, 0.0, elapsed_s))
        else:
            self.n_backed_off += 1
            self._hear(batcher.back_off(step, result, 0.0))
        batcher.check()
        running = batcher.residency.running
        self.n_suspended += sum(s.suspended_at is not None for s in running)
        return True

    def run(self) -> None:
        """Run steps until there is nothing to do."""
        while self.step():
            pass

    def _hear(self, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            seq_id = emission.sequence.seq_id
            if emission.token is not None:
                self.tokens[seq_id].append(emission.token)
            if emission.ending is not None:
                self.endings[seq_id] = str(emission.ending)
                self.n_cached[seq_id] = emission.sequence.n_cached


def said_alone(
    requests: Sequence[Request], options: ReferenceOptions = SMALL, *, n_ctx: int = 48
) -> tuple[Said, dict[int, str]]:
    """Run each request on an engine of its own."""
    tokens: Said = {}
    ended: dict[int, str] = {}
    for seq_id, request in enumerate(requests):
        with machine(options, n_ctx=n_ctx) as engine:
            drive = Drive(engine)
            drive.submit(seq_id, request)
            drive.run()
        tokens |= drive.tokens
        ended |= drive.endings
    return tokens, ended
