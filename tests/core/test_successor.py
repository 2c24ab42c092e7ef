"""The step behind one in which everybody generates: when there is one, and what becomes of it."""

from random import Random

import pytest

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointSave,
    Logprobs,
    Sampled,
    SampleFault,
    Step,
    StepResult,
)
from runnerd.core.batcher import Batcher
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import Options, Sequence
from runnerd.core.successor import successor
from tests.core.simulation import Simulation
from tests.helpers import (
    END,
    ByteVocabulary,
    endings,
    make_batcher,
    make_limits,
    make_sequence,
    result_of,
    rows_of,
    run_all,
    run_step,
    text_of,
)

KINDS = (
    make_limits(n_slots=3),
    make_limits(n_slots=3, is_unified=True, n_cells=120),
    make_limits(n_slots=3, window=8),
    make_limits(n_slots=3, can_rewind=False),
)


def is_end(token: int) -> bool:
    return token == END


def generating(*sequences: Sequence, n_cells: int | None = None) -> Batcher:
    """Return a batcher of two slots whose sequences generate, with a step in flight."""
    batcher = make_batcher(n_batch=64, n_cells=n_cells, is_unified=n_cells is not None)
    for sequence in sequences:
        batcher.submit(sequence)
    run_step(batcher)
    assert batcher.plan(0.0) is not None
    return batcher


def in_flight(batcher: Batcher) -> Step:
    assert batcher.in_flight is not None
    return batcher.in_flight


def next_of(batcher: Batcher, *tokens: Sampled) -> Step | None:
    """Return the successor of the step in flight, which gives these tokens."""
    return successor(in_flight(batcher), tokens, is_end)


# --- which step it is ----------------------------------------------------------------------


def test_it_is_the_step_that_would_be_planned() -> None:
    ahead, planned = (generating(make_sequence(0, [1, 2]), make_sequence(1, [3])) for _ in "ab")
    following = next_of(ahead, 65, 66)
    step = in_flight(planned)
    planned.commit(step, result_of(step, lambda seq_id: 65 + seq_id), 0.0, 0.01)
    assert following == planned.plan(0.0)


def test_a_token_with_its_logprobs_is_a_token() -> None:
    batcher = generating(make_sequence(0, [1]))
    assert next_of(batcher, Logprobs(65, -0.5, ())) == next_of(batcher, 65)


@pytest.mark.parametrize("last", [END, SampleFault("no token")])
def test_there_is_none_if_somebody_got_no_token_to_go_on_with(last: Sampled) -> None:
    assert next_of(generating(make_sequence(0, [1]), make_sequence(1, [1])), 65, last) is None


# --- when there may be one -----------------------------------------------------------------


def test_everybody_generates_and_nobody_waits() -> None:
    batcher = generating(make_sequence(0, [1]), make_sequence(1, [1]))
    assert batcher.may_run_ahead
    batcher.submit(make_sequence(2, [1]))
    assert not batcher.may_run_ahead


def test_not_amid_a_prompt() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(0, [1]))
    assert batcher.plan(0.0) is not None
    assert not batcher.may_run_ahead


def test_not_between_steps() -> None:
    batcher = generating(make_sequence(0, [1]))
    step = in_flight(batcher)
    batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.01)
    assert not batcher.may_run_ahead


@pytest.mark.parametrize("max_tokens", range(2, 5))
def test_not_beyond_the_tokens_that_were_asked_for(max_tokens: int) -> None:
    batcher = generating(make_sequence(0, [1], max_tokens=max_tokens))
    assert batcher.may_run_ahead == (max_tokens > 2)  # it has one, and gets the second


def test_not_beyond_the_context() -> None:
    n_ctx = make_limits().n_ctx
    assert generating(make_sequence(0, [1] * (n_ctx - 3))).may_run_ahead
    assert not generating(make_sequence(0, [1] * (n_ctx - 2))).may_run_ahead


def test_not_where_text_may_end_a_sequence() -> None:
    assert not generating(make_sequence(0, [1], stops=("stop",))).may_run_ahead


def test_not_for_whom_a_client_has_cancelled_or_does_not_read() -> None:
    batcher = generating(make_sequence(0, [1]), make_sequence(1, [1]))
    batcher.pause(1, paused=True)
    assert not batcher.may_run_ahead
    batcher.pause(1, paused=False)
    assert batcher.may_run_ahead
    batcher.end(0, "cancelled")
    assert not batcher.may_run_ahead


def test_not_without_cells_for_both_steps() -> None:
    batcher = generating(make_sequence(0, [1] * 30), make_sequence(1, [2] * 30), n_cells=64)
    assert batcher.residency.ledger.n_free == 4
    assert batcher.may_run_ahead
    step, following = in_flight(batcher), next_of(batcher, 65, 65)
    assert following is not None
    batcher.follow(step, result_of(step, lambda _: 65), 0.0, 0.01, following)
    assert not batcher.may_run_ahead


def test_not_before_a_checkpoint_is_dropped_that_took_more_than_there_is() -> None:
    limits = make_limits(can_rewind=False, can_shift=False)
    batcher = Batcher(limits, ByteVocabulary(), 0.05, checkpoint_budget_bytes=10)
    batcher.submit(make_sequence(0, [1], limits=limits))
    batcher.submit(make_sequence(1, range(30), limits=limits))
    run_step(batcher)
    batcher.end(1, "cancelled")
    step = batcher.plan(0.0)
    assert step is not None
    (made,) = (edit for edit in step.edits if isinstance(edit, CheckpointSave))
    assert batcher.may_run_ahead
    following = next_of(batcher, 65)
    assert following is not None
    batcher.follow(
        step, StepResult(1, (65,), saved=((made.checkpoint_id, 20),)), 0.0, 0.01, following
    )
    assert not batcher.may_run_ahead
    batcher.commit(following, result_of(following, lambda _: 65), 0.0, 0.01)
    step, _ = run_step(batcher)
    assert step.edits == (CheckpointDrop(made.checkpoint_id),)


# --- what becomes of it --------------------------------------------------------------------


def test_who_is_cancelled_when_it_runs_already_ends_with_it() -> None:
    batcher = generating(make_sequence(0, [1]), make_sequence(1, [1]))
    step, following = in_flight(batcher), next_of(batcher, 66, 66)
    assert following is not None
    assert batcher.end(0, "cancelled") == []
    said = batcher.follow(step, result_of(step, lambda _: 66), 0.0, 0.01, following)
    assert endings(said) == {}
    batcher.check()
    said = batcher.commit(following, result_of(following, lambda _: 67), 0.0, 0.01)
    assert endings(said) == {0: "cancelled"}
    assert text_of(said, 0) == text_of(said, 1) == "C"
    next_step, _ = run_step(batcher)
    assert rows_of(next_step) == {1: 1}


@pytest.mark.parametrize("limits", KINDS, ids=("split", "unified", "window", "recurrent"))
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_meanwhile_every_property_holds(limits: object, seed: int) -> None:
    rng = Random(seed)
    sim = Simulation(KINDS[KINDS.index(limits)])
    n_ahead = 0
    for _ in range(150):
        if rng.random() < 0.1:
            options = Options(max_tokens=rng.randint(1, 40), shift=rng.random() < 0.3)
            sim.submit(Prompt(tuple(rng.choices((97, 98), k=rng.randint(1, 30)))), options)
        if sim.step is None and not sim.plan():
            continue
        if sim.live and rng.random() < 0.05:
            sim.end(rng.choice(list(sim.live)), "cancelled")
        if sim.live and rng.random() < 0.05:
            sim.pause(rng.choice(list(sim.live)), paused=rng.random() < 0.3)
        if sim.may_run_ahead:
            n_ahead += sim.follow(lambda _: END if rng.random() < 0.02 else 97, 0.01)
        else:
            sim.commit(lambda _: 97, 0.01)
    assert n_ahead > 20
    sim.drain(lambda _: rng.choice((97, 98, END)))
    sim.replay()


def test_the_same_is_said_with_it_and_without() -> None:
    def submitted() -> Batcher:
        batcher = make_batcher()
        batcher.submit(make_sequence(0, [1] * 5, max_tokens=9))
        batcher.submit(make_sequence(1, [2] * 9, max_tokens=20))
        return batcher

    plain = run_all(submitted())
    batcher, said = submitted(), []
    while (step := batcher.in_flight or batcher.plan(0.0)) is not None:
        result = result_of(step, lambda _: 65)
        following = next_of(batcher, *result.sampled) if batcher.may_run_ahead else None
        if following is None:
            said += batcher.commit(step, result, 0.0, 0.01)
        else:
            said += batcher.follow(step, result, 0.0, 0.01, following)
        batcher.check()
    assert endings(said) == endings(plain) == {0: "length", 1: "length"}
    assert [text_of(said, n) for n in (0, 1)] == [text_of(plain, n) for n in (0, 1)]
