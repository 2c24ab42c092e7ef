"""What the page and the terminal show of results, as words: figures, changes, bars, failures."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from loadtest.comparison.figures import known
from loadtest.comparison.results import Results, Spread, Verdict, WorkloadResult

NOTHING = "–"  # noqa: RUF001 - a dash, as tables have it
MOST_FAILURES = 5  # of a turn, each with as many requests as said the same
MOST_TEXT = 2000  # characters of an error


class Cell(NamedTuple):
    """A figure as it is shown. `is_worse`, where it can be said: than in the baseline."""

    told: str
    spread: str = ""
    change: str = ""
    is_worse: bool | None = None


class FigureRow(NamedTuple):
    """A figure of a workload, of each system."""

    name: str
    about: str
    cells: list[Cell]


class BarRow(NamedTuple):
    """A bar as it is shown."""

    workload: str
    name: str
    ours: str
    theirs: str
    value: str
    limit: str
    outcome: str
    why: str


def number(value: float | None) -> str:
    """Return three digits of a figure, or all of a large one."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def systems_of(workload: WorkloadResult) -> list[str]:
    """Return the names of those that were measured, or should have been, in order."""
    return list(dict.fromkeys(turn.system for turn in workload.turns))


def figure_rows(workload: WorkloadResult, baseline: Results | None) -> list[FigureRow]:
    """Return the figures of a workload, with their changes against a baseline if there is one."""
    before = None if baseline is None else baseline.workload(workload.name)
    systems = systems_of(workload)
    names = dict.fromkeys(name for system in systems for name in workload.summaries.get(system, {}))
    rows = []
    for name in names:
        figure = known(name)
        unit = f", {figure.unit}" if figure.unit else ""
        cells = [_cell(workload, before, system, name) for system in systems]
        rows.append(FigureRow(name + unit, figure.about, cells))
    return rows


def _cell(workload: WorkloadResult, before: WorkloadResult | None, system: str, name: str) -> Cell:
    spread = workload.summaries.get(system, {}).get(name)
    if spread is None:
        return Cell(NOTHING)
    old = None if before is None else before.median(system, name)
    if not old:
        return Cell(number(spread.median), _spread(spread))
    change = spread.median / old - 1
    is_more_better = known(name).better == "more"
    is_worse = (change < 0) == is_more_better if round(change, 3) else None
    return Cell(number(spread.median), _spread(spread), f"{change:+.1%}", is_worse)


def _spread(spread: Spread) -> str:
    if spread.n_turns < 2 or spread.least == spread.greatest:
        return ""
    return f"{number(spread.least)} to {number(spread.greatest)}"


def bar_rows(verdicts: Iterable[Verdict]) -> list[BarRow]:
    """Return the bars as they are shown."""
    return [
        BarRow(
            each.workload,
            each.name,
            number(each.ours),
            number(each.theirs),
            number(each.value),
            f"{'≥' if each.sign == '>=' else '≤'} {each.limit:g}",
            each.outcome,
            each.why,
        )
        for each in verdicts
    ]


def headline(results: Results) -> str:
    """Return how many bars are met, and which outcomes the others have."""
    if not results.verdicts:
        return "no bar applies"
    counts = Counter(each.outcome for each in results.verdicts)
    told = [f"{counts['met']} of {len(results.verdicts)} bars met"]
    told += [f"{counts[outcome]} {outcome}" for outcome in ("missed", "unknown") if counts[outcome]]
    return ", ".join(told)


def failures(results: Results) -> list[tuple[str, str]]:
    """Return what went wrong: where, and what was said about it, each once."""
    found: dict[tuple[str, str], None] = {}
    absent = {system.name: system.error for system in results.systems if system.error}
    for name, error in absent.items():
        found[name, _cut(error)] = None
    for workload in results.workloads:
        if workload.error:
            found[workload.name, _cut(workload.error)] = None
        for turn in workload.turns:
            where = f"{turn.system}, {workload.name}, round {turn.n_round}"
            if turn.error and not (turn.is_absent and turn.system in absent):
                found[where, _cut(turn.error)] = None
            failed = [each for each in turn.exchanges if each.ended == "failed"]
            texts = Counter(_cut(each.error) for each in failed)
            for text, n_requests in texts.most_common(MOST_FAILURES):
                found[f"{where}: requests that failed: {n_requests}", text] = None
    return list(found)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."
