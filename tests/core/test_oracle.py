"""The batcher over the reference engine: with others, every request says what it says alone.

The reference engine is exact, so this holds to the last token: whatever shares the batches,
is suspended, cached, shifted by evaluating again, or runs into a cache that has no room.
"""

from random import Random

import msgspec
import pytest

from runnerd.core.batch import Sampling
from runnerd.core.sequence import Options
from tests.core.driven import Drive, Request, expand, machine, said_alone
from tests.engine.reference_builders import SMALL

N_CTX = 48
NO_SHIFT = msgspec.structs.replace(SMALL, shift=False)
WORDS = ("the cat ", "the cat sat ", "a<image:9:red>b", "<image:12:5:blue>", "<image:20:causal:x>")


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


@pytest.mark.parametrize("seed", range(4))
def test_over_committed_and_faulty_requests_say_what_they_say_alone(seed: int) -> None:
    rng = Random(seed)
    requests = random_requests(rng, 14)
    with machine(NO_SHIFT, n_slots=5, n_cells=2 * N_CTX) as engine:
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
        drive.run()
    assert (drive.tokens, drive.endings) == said_alone(requests, NO_SHIFT)
    assert drive.n_backed_off > 0
    assert drive.n_suspended > 0


def test_shifted_requests_with_cells_enough_say_what_they_say_alone() -> None:
    requests = random_requests(Random(7), 12)
    with machine(n_slots=4) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
        drive.run()
    assert (drive.tokens, drive.endings) == said_alone(requests)


def test_a_prompt_that_was_cut_short_in_the_cache_says_what_it_says_alone() -> None:
    requests = random_requests(Random(3), 8)
    with machine(NO_SHIFT, n_slots=2) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(100 + seq_id, request)
            drive.step()
            drive.batcher.end(100 + seq_id, "cancelled")
            drive.submit(seq_id, request)
            drive.run()
    tokens = {seq_id: said for seq_id, said in drive.tokens.items() if seq_id < 100}
    assert tokens == said_alone(requests, NO_SHIFT)[0]


def test_the_same_conversation_grows_out_of_the_cache() -> None:
    texts = ["the cat sat on a mat"[:n] for n in range(3, 20, 4)]
    requests = [(expand(text), Options(max_tokens=5)) for text in texts]
    with machine(NO_SHIFT) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            drive.run()
    assert drive.tokens == said_alone(requests, NO_SHIFT)[0]
    assert sum(drive.n_cached.values()) > 0
