"""How far a prompt is: told from its start to its end, each time more."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from tests.helpers import make_batcher, make_sequence, result_of, run_all


def run_told(batcher: Batcher, seq_id: int, *, n_steps: int = 1000) -> list[int]:
    """Run steps; return what is told of a prompt."""
    told: list[int] = []

    def hear(emissions: list[Emission]) -> None:
        for emission in emissions:
            if emission.has_progressed and emission.sequence.seq_id == seq_id:
                assert (emission.text, emission.token, emission.ending) == ("", None, None)
                told.append(emission.sequence.n_processed)

    for _ in range(n_steps):
        step = batcher.plan(0.0)
        hear(batcher.news())
        if step is None:
            break
        hear(batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0))
    return told


def test_progress_goes_from_what_was_cached_to_the_whole_prompt() -> None:
    batcher = make_batcher(n_batch=16)
    batcher.submit(make_sequence(1, range(1, 11), max_tokens=1))
    run_all(batcher)
    prompt = [*range(1, 11), *range(50, 80)]
    batcher.submit(make_sequence(2, prompt, max_tokens=3, wants_progress=True))
    assert run_told(batcher, 2) == [10, 26, 40]


def test_progress_is_told_only_to_those_who_want_it() -> None:
    batcher = make_batcher(n_batch=16)
    batcher.submit(make_sequence(1, range(40), max_tokens=3))
    assert run_told(batcher, 1) == []


def test_the_last_word_on_progress_comes_before_the_first_token() -> None:
    batcher = make_batcher(n_ctx=16, n_batch=16)
    batcher.submit(
        make_sequence(1, range(16), limits=batcher.limits, shift=True, wants_progress=True)
    )
    step = batcher.plan(0.0)
    assert step is not None
    assert [emission.sequence.n_processed for emission in batcher.news()] == [0]
    said = batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
    assert [emission.has_progressed for emission in said] == [True, False]
    assert said[0].sequence.n_processed == 16
    assert said[1].token == 65


def test_a_prompt_that_is_all_is_told_whole_before_the_end() -> None:
    batcher = make_batcher(n_batch=16)
    batcher.submit(make_sequence(1, range(20), max_tokens=0, wants_progress=True))
    assert run_told(batcher, 1) == [0, 16, 20]


def test_a_prompt_that_was_cut_is_told_up_to_what_is_left_of_it() -> None:
    batcher = make_batcher(n_ctx=32, n_batch=32)
    sequence = make_sequence(
        1, range(100), limits=batcher.limits, truncate=True, wants_progress=True, max_tokens=1
    )
    batcher.submit(sequence)
    assert run_told(batcher, 1)[-1] == 100 - sequence.n_truncated


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(64, 200))
@settings(deadline=None, max_examples=50)
def test_progress_rises_strictly_even_for_one_that_loses_its_cells(
    lengths: list[int], n_cells: int
) -> None:
    batcher = make_batcher(n_slots=3, n_cells=min(n_cells, 3 * 64), n_batch=16, is_unified=True)
    for seq_id, n_prompt in enumerate(lengths):
        prompt = [seq_id + 1] * n_prompt
        batcher.submit(make_sequence(seq_id, prompt, max_tokens=20, wants_progress=True))
    told: dict[int, list[int]] = {seq_id: [] for seq_id in range(len(lengths))}

    def hear(emissions: list[Emission]) -> None:
        for emission in emissions:
            if emission.has_progressed:
                told[emission.sequence.seq_id].append(emission.sequence.n_processed)

    while (step := batcher.plan(0.0)) is not None:
        hear(batcher.news())
        hear(batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0))
    assert batcher.seq_ids == ()
    for seq_id, n_prompt in enumerate(lengths):
        steps = told[seq_id]
        assert steps == sorted(set(steps))
        assert steps[-1] == n_prompt


def test_who_waits_can_ask_how_many_are_ahead() -> None:
    batcher = make_batcher(n_slots=1)
    batcher.submit(make_sequence(0, [1, 2]))
    run_told(batcher, 0, n_steps=1)
    for seq_id in (1, 2, 3):
        batcher.submit(make_sequence(seq_id, [1, 2], priority="high" if seq_id == 3 else "low"))
    assert [batcher.n_ahead(seq_id) for seq_id in (3, 0, 1, 2, 99)] == [0, 0, 1, 2, 0]
    batcher.end(0, "cancelled")
    assert batcher.n_ahead(0) == 0
