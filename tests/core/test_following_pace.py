"""When waiting for another's prefix repays: counted in rows until the first token."""

import pytest

from runnerd.core.batcher import Batcher
from tests.helpers import ByteVocabulary, make_limits, make_sequence, result_of

HEAD = list(range(100, 120))  # of a chat template, the same for all


def rows_until_first_token(prompts: dict[int, list[int]], *, n_batch: int = 512) -> dict[int, int]:
    """Return how many rows were evaluated before each sequence's first token."""
    limits = make_limits(n_slots=8, n_ctx=8192, n_batch=n_batch, is_unified=True)
    batcher = Batcher(limits, ByteVocabulary(), 0.05)
    for seq_id, prompt in prompts.items():
        batcher.submit(make_sequence(seq_id, prompt, limits=limits, max_tokens=3))
    n_rows, first = 0, dict[int, int]()
    while (step := batcher.plan(0.0)) is not None:
        n_rows += step.n_rows
        for said in batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.002 * step.n_rows):
            if said.token is not None:
                first.setdefault(said.sequence.seq_id, n_rows)
    return first


def test_a_short_prompt_does_not_sit_out_the_step_of_a_long_one_for_a_common_header() -> None:
    prompts = {0: HEAD + [1000 + n for n in range(4000)]}
    prompts |= {s: HEAD + [5000 + 100 * s + n for n in range(20)] for s in (1, 2, 3)}
    first = rows_until_first_token(prompts)
    assert {first[seq_id] for seq_id in (1, 2, 3)} == {512}


@pytest.mark.parametrize("n_prompt", [20, 100, 257, 300, 1500, 4000])
def test_completions_of_one_prompt_share_its_prefill_whatever_its_length(n_prompt: int) -> None:
    prompt = [1000 + n for n in range(n_prompt)]
    first = rows_until_first_token(dict.fromkeys(range(5), prompt))
    assert max(first.values()) <= n_prompt + 8


def test_a_long_common_prefix_is_waited_for_next_to_another_prompt() -> None:
    head = [2000 + n for n in range(3000)]
    other = [9000 + n for n in range(6000)]
    first = rows_until_first_token({0: other, 1: [*head, 1], 2: [*head, 2], 3: [*head, 3]})
    assert first[3] < 3000 + 6000


def test_what_is_cached_but_for_a_little_is_not_waited_for_behind_all_of_another() -> None:
    limits = make_limits(n_slots=4, n_ctx=8192, n_batch=64, is_unified=True)
    batcher = Batcher(limits, ByteVocabulary(), 0.05)
    text = [1000 + n for n in range(2000)]
    batcher.submit(make_sequence(0, text[:900], limits=limits, max_tokens=1))
    while (step := batcher.plan(0.0)) is not None:
        batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
    cached = make_sequence(2, text[:1000], limits=limits, max_tokens=1)
    waiting = make_sequence(1, [7, *text], limits=limits, max_tokens=1)
    batcher.submit(waiting)
    batcher.submit(cached)
    batcher.plan(0.0)
    assert cached.follows is None
    assert cached.n_cached == 900
