"""Phases of a load: in order, never back, and moving whatever is done again."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llama_cpp")

from runnerd.engine.llama.phases import PHASES, Phases
from runnerd.errors import LoadCancelled

pytestmark = pytest.mark.llama

reports = st.lists(st.tuples(st.sampled_from(PHASES), st.floats(0, 1)), min_size=1, max_size=40)
Told = list[tuple[int, float]]


def recording(told: Told) -> Phases:
    def progress(phase: str, fraction: float) -> bool:
        told.append((PHASES.index(phase), fraction))
        return True

    return Phases(progress)


@given(reports)
def test_whatever_is_reported_nothing_told_goes_back(reported: list[tuple[str, float]]) -> None:
    told: Told = []
    phases = recording(told)
    for phase, fraction in reported:
        phases.reach(phase, fraction)
    assert len(told) == len(reported)
    assert all(before <= after for before, after in pairwise(told))
    assert all(0 <= fraction <= 1 for _, fraction in told)


@given(st.lists(st.floats(0, 1), max_size=20).map(sorted))
def test_a_load_that_only_goes_on_is_told_as_it_is(fractions: list[float]) -> None:
    told: Told = []
    phases = recording(told)
    for phase in PHASES:
        for fraction in fractions:
            phases.reach(phase, fraction)
    assert told == [(at, fraction) for at in range(len(PHASES)) for fraction in fractions]


@pytest.mark.parametrize("n_tries", [2, 5])
def test_a_load_that_begins_anew_moves_on_within_the_phase_where_it_failed(n_tries: int) -> None:
    told: Told = []
    phases = recording(told)
    steps = [("weights", each / 10) for each in range(11)]
    for _ in range(n_tries):
        for step in [("open", 1.0), *steps, ("context", 0.0)]:
            phases.reach(*step)
    tried_again = told[len(steps) + 2 :]
    assert {at for at, _ in tried_again} == {PHASES.index("context")}
    n_values = len({fraction for _, fraction in tried_again})
    assert n_values >= (len(steps) - 1) * (n_tries - 1)
    assert max(fraction for _, fraction in told[-1:]) < 1.0
    phases.reach("context", 1.0)
    assert told[-1] == (PHASES.index("context"), 1.0)


def test_part_of_a_phase_is_told_as_such() -> None:
    told: Told = []
    phases = recording(told)
    for begin, end in ((0.0, 0.5), (0.5, 1.0)):
        callback = phases.native("projector", begin, end)
        assert callback(0.5, None)
        assert callback(1.0, None)
    assert [fraction for _, fraction in told] == [0.25, 0.5, 0.75, 1.0]


def test_a_callback_that_was_stopped_does_not_ask_again() -> None:
    asked = []

    def progress(phase: str, fraction: float) -> bool:
        asked.append(fraction)
        return False

    phases = Phases(progress)
    callback = phases.native("weights")
    assert not callback(0.1, None)
    assert not callback(0.2, None)
    assert asked == [0.1]
    with pytest.raises(LoadCancelled, match="weights"):
        phases.check()
