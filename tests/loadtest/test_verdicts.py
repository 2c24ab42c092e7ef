"""Bars, and when they are met."""

import pytest

from loadtest.comparison.figures import KNOWN
from loadtest.comparison.results import Results, Spread, SystemSeen, Turn, Verdict
from loadtest.comparison.verdicts import CLAIMS, Claim, Side, are_all_met, verdicts
from loadtest.comparison.workloads import workloads
from tests.loadtest.test_results import make_results

OURS = Side("steady-1", "ours", "tokens_per_s")
THEIRS = Side("steady-1", "llama-server", "tokens_per_s")


def results(ours: float | None, theirs: float | None = None, error: str = "") -> Results:
    found = make_results()
    found.systems = [SystemSeen(name="ours"), SystemSeen(name="llama-server")]
    [workload] = found.workloads
    workload.turns = [Turn(system="llama-server", n_round=0, error=error, is_absent=True)]
    workload.summaries = {
        system: {"tokens_per_s": Spread(median=value, least=value, greatest=value, n_turns=1)}
        for system, value in (("ours", ours), ("llama-server", theirs))
        if value is not None
    }
    return found


def judge(found: Results, limit: float = 1.0) -> Verdict:
    [verdict] = verdicts(found, [Claim("rate", OURS, THEIRS, ">=", limit)])
    return verdict


@pytest.mark.parametrize(("ours", "outcome"), [(10.0, "met"), (9.9, "missed"), (11.0, "met")])
def test_a_bar_is_held_against_a_ratio(ours: float, outcome: str) -> None:
    verdict = judge(results(ours, 10.0))
    assert verdict.value == pytest.approx(ours / 10.0)
    assert (verdict.outcome, verdict.against) == (outcome, "llama-server")


def test_a_bar_without_anyone_to_compare_with_is_held_against_the_figure() -> None:
    [verdict] = verdicts(results(3.0), [Claim("rate", OURS, None, "<=", 2.0)])
    assert (verdict.value, verdict.against, verdict.outcome) == (3.0, "", "missed")


def test_a_peer_that_is_absent_is_named_and_the_bar_is_not_met() -> None:
    verdict = judge(results(10.0, None, error="it is not built"))
    assert (verdict.outcome, verdict.why, verdict.value) == ("unknown", "it is not built", None)
    assert not are_all_met([verdict])


def test_a_bar_is_missed_if_ours_gave_nothing() -> None:
    verdict = judge(results(None, 10.0))
    assert (verdict.outcome, verdict.why) == ("missed", "ours gave no tokens_per_s")


def test_turns_of_ours_that_failed_are_a_bar_that_is_missed() -> None:
    found = results(10.0, 10.0)
    found.workloads[0].turns.append(Turn(system="ours", n_round=1, error="1 of 2 failed"))
    [verdict] = verdicts(found, [])
    assert (verdict.name, verdict.outcome, verdict.why) == (
        "failed turns",
        "missed",
        "1 of 2 failed",
    )


def test_bars_on_what_nobody_asked_for_are_left_out() -> None:
    found = results(10.0, 10.0)
    found.systems = [SystemSeen(name="ours")]
    assert verdicts(found, [Claim("rate", OURS, THEIRS, ">=", 1.0)]) == []
    other = Claim("rate", Side("chat", "ours", "tokens_per_s"), None, ">=", 1.0)
    assert verdicts(found, [other]) == []


def test_every_bar_is_on_a_workload_and_a_figure_that_there_is() -> None:
    names = set(workloads())
    for bar in CLAIMS:
        for side in (bar.ours, bar.theirs):
            if side is not None:
                assert side.workload in names
                assert side.figure.rpartition(".")[2] in KNOWN
