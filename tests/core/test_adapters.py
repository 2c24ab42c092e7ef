"""Turns among sets of adapters: one set in a step, kept for a while, nobody starved."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from runnerd.core.adapters import HOLD_STEPS, AdapterTurns
from runnerd.core.batch import Adapter, Adapters
from tests.helpers import make_batcher, make_sequence, rows_of, run_all, run_step

A, B, C = ((Adapter(name),) for name in "abc")


def run(turns: AdapterTurns, *steps: tuple[Adapters, ...]) -> list[Adapters]:
    """Return the set of each step, given what is wanted in it."""
    chosen: list[Adapters] = []
    for wanted in steps:
        chosen.append(turns.choose(wanted))
        turns.count_step()
    return chosen


def test_a_set_is_kept_while_nobody_else_waits() -> None:
    assert run(AdapterTurns(), *[(A,)] * 20) == [A] * 20


def test_a_set_gives_way_after_some_steps_that_others_waited() -> None:
    turns = AdapterTurns()
    run(turns, *[(A,)] * 20)
    assert run(turns, *[(A, B)] * 10) == [*[A] * 4, *[B] * 4, *[A] * 2]


def test_a_set_with_nothing_to_do_gives_way_at_once() -> None:
    assert run(AdapterTurns(), (A, B), (B,), (B, A), (A,)) == [A, B, B, A]


def test_the_set_that_waits_longest_is_next() -> None:
    turns = AdapterTurns()
    assert run(turns, (A,), *[(A, C)] * 2, *[(A, B, C)] * 8)[4:] == [A, C, C, C, C, B, B]


@given(st.lists(st.sets(st.sampled_from([(), A, B, C]), min_size=1), max_size=60))
def test_whoever_waits_is_served_within_the_bound(steps: list[set[Adapters]]) -> None:
    turns, waited = AdapterTurns(), Counter[Adapters]()
    for wanted in steps:
        chosen = turns.choose(sorted(wanted, key=repr))
        turns.count_step()
        assert chosen in wanted
        waited = Counter({adapters: waited[adapters] + 1 for adapters in wanted - {chosen}})
        assert all(n < HOLD_STEPS * 4 for n in waited.values())


def test_all_rows_of_a_step_are_of_its_adapters() -> None:
    batcher = make_batcher(n_slots=4)
    sets = [A, (), A, B]
    for seq_id, adapters in enumerate(sets):
        batcher.submit(make_sequence(seq_id, [seq_id] * 3, max_tokens=20, adapters=adapters))
    n_steps = Counter[Adapters]()
    for _ in range(24):
        step, _ = run_step(batcher)
        assert {sets[seq_id] for seq_id in rows_of(step)} == {step.adapters}
        n_steps[step.adapters] += 1
    assert n_steps == {A: 8, (): 8, B: 8}
    run_all(batcher)


def test_a_paused_sequence_does_not_hold_its_adapters_turn() -> None:
    batcher = make_batcher()
    for seq_id, adapters in enumerate((A, B)):
        batcher.submit(make_sequence(seq_id, [seq_id] * 3, adapters=adapters))
    run_step(batcher)
    batcher.pause(0, paused=True)
    assert [run_step(batcher)[0].adapters for _ in range(6)] == [B] * 6


def test_a_minority_gets_on_however_many_come_with_other_adapters() -> None:
    batcher = make_batcher(n_slots=4, n_batch=16)
    batcher.submit(make_sequence(0, [9] * 3, adapters=A))
    served: list[bool] = []
    for seq_id in range(1, 61):
        batcher.submit(make_sequence(seq_id, [seq_id] * 20, max_tokens=4))
        served.append(0 in rows_of(run_step(batcher)[0]))
    gaps = "".join("x" if is_served else "." for is_served in served).split("x")
    assert max(map(len, gaps)) <= HOLD_STEPS
    assert served.count(True) >= 24
