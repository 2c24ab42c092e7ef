"""The batcher over the reference engine: with others, every request says what it says alone.

The reference engine is exact, so this holds to the last token: whatever shares the batches,
is suspended, cached, shifted by evaluating again, or runs into a cache that has no room.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import msgspec
import pytest

from runnerd.core.batch import Sampling
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt, TextPart
from runnerd.core.sequence import Options, admit
from runnerd.engine.base import run_step
from runnerd.engine.reference import ReferenceEngine
from tests.engine.reference_builders import SMALL, reference

N_CTX, N_BATCH, N_UBATCH = 48, 40, 16
NO_SHIFT = msgspec.structs.replace(SMALL, shift=False)
WORDS = ("the cat ", "the cat sat ", "a<image:9:red>b", "<image:12:5:blue>", "<image:20:causal:x>")
Request = tuple[Prompt, Options]


def random_requests(rng: Random, n_requests: int) -> list[Request]:
    """Return requests of shared words and images, some sampled by a seed, some shifting."""
    requests: list[Request] = []
    for _ in range(n_requests):
        text = "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))
        sampling = Sampling(
            temperature=rng.choice((0.0, 1.0)),
            top_k=rng.choice((0, 5)),
            repeat_penalty=rng.choice((1.0, 1.3)),
            seed=rng.randrange(1000),
        )
        options = Options(
            sampling=sampling,
            max_tokens=rng.choice((1, 12, 70)),
            n_keep=rng.choice((0, 3)),
            truncate=True,
            shift=rng.random() < 0.6,
        )
        requests.append((expand(text), options))
    return requests


def expand(text: str) -> Prompt:
    with machine() as engine:
        return engine.expand([TextPart(text, special=True)])


@contextmanager
def machine(
    *, n_slots: int = 1, n_cells: int = 0, can_shift: bool = False
) -> Iterator[ReferenceEngine]:
    """Make an engine of the size that these tests have in common."""
    options = SMALL if can_shift else NO_SHIFT
    sizes = {"n_ctx": N_CTX, "n_batch": N_BATCH, "n_ubatch": N_UBATCH}
    with reference(options, n_slots=n_slots, n_cells=n_cells, **sizes) as engine:
        yield engine


class Drive:
    """Runs requests through a batcher and an engine; collects each one's tokens and end."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self.engine = engine
        self.batcher = Batcher(engine.limits, engine, target_itl_s=0.05)
        self.tokens: dict[int, list[int]] = {}
        self.endings: dict[int, str] = {}
        self.n_backed_off = 0
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
        result = run_step(self.engine, step)
        if result.n_batches == len(step.batches):
            self._hear(batcher.commit(step, result, 0.0, elapsed_s))
        else:
            self.n_backed_off += 1
            self._hear(batcher.back_off(step, result, 0.0))
        batcher.check()
        running = batcher.residency.running
        self.n_suspended += sum(s.suspended_at is not None for s in running)
        return True

    def _hear(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            seq_id = emission.sequence.seq_id
            if emission.token is not None:
                self.tokens[seq_id].append(emission.token)
            if emission.ending is not None:
                self.endings[seq_id] = str(emission.ending)


def said_alone(
    requests: list[Request], *, can_shift: bool = False
) -> tuple[dict[int, list[int]], dict[int, str]]:
    """Run each request on an engine of its own."""
    tokens: dict[int, list[int]] = {}
    ended: dict[int, str] = {}
    for seq_id, request in enumerate(requests):
        with machine(can_shift=can_shift) as engine:
            drive = Drive(engine)
            drive.submit(seq_id, request)
            while drive.step():
                pass
        tokens |= drive.tokens
        ended |= drive.endings
    return tokens, ended


@pytest.mark.parametrize("seed", range(4))
def test_over_committed_and_faulty_requests_say_what_they_say_alone(seed: int) -> None:
    rng = Random(seed)
    requests = random_requests(rng, 14)
    with machine(n_slots=5, n_cells=2 * N_CTX) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            if rng.random() < 0.3:
                engine.faults.no_kv_slot(rng.randint(1, 3))
            for _ in range(rng.randrange(4)):
                drive.step(elapsed_s=rng.random() * 0.1)
            drive.batcher.pause(rng.randrange(seq_id + 1), paused=rng.random() < 0.5)
        for seq_id in drive.batcher.seq_ids:
            drive.batcher.pause(seq_id, paused=False)
        while drive.step():
            pass
    assert (drive.tokens, drive.endings) == said_alone(requests)
    assert drive.n_backed_off > 0
    assert drive.n_suspended > 0


def test_shifted_requests_with_cells_enough_say_what_they_say_alone() -> None:
    requests = random_requests(Random(7), 12)
    with machine(n_slots=4, can_shift=True) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
        while drive.step():
            pass
    assert (drive.tokens, drive.endings) == said_alone(requests, can_shift=True)


def test_a_prompt_that_was_cut_short_in_the_cache_says_what_it_says_alone() -> None:
    requests = random_requests(Random(3), 8)
    with machine(n_slots=2) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(100 + seq_id, request)
            drive.step()
            drive.batcher.end(100 + seq_id, "cancelled")
            drive.submit(seq_id, request)
            while drive.step():
                pass
    tokens = {seq_id: said for seq_id, said in drive.tokens.items() if seq_id < 100}
    assert tokens == said_alone(requests)[0]


def test_the_same_conversation_grows_out_of_the_cache() -> None:
    texts = ["the cat sat on a mat"[:n] for n in range(3, 20, 4)]
    requests = [(expand(text), Options(max_tokens=5)) for text in texts]
    with machine() as engine:
        drive = Drive(engine)
        n_evaluated = 0
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            sequence = drive.batcher.waiting[0]
            while drive.step():
                pass
            n_evaluated += sequence.n_prompt - sequence.n_cached
    assert drive.tokens == said_alone(requests)[0]
    assert n_evaluated < sum(len(prompt.inputs) for prompt, _ in requests)
