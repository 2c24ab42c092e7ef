"""`python -m loadtest compare`: our daemon and what people would pick instead, side by side."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from loadtest.comparison.comparing import Plan, compare
from loadtest.comparison.limits import limits
from loadtest.comparison.machine import this_machine
from loadtest.comparison.peers import known
from loadtest.comparison.report_page.text import report_text
from loadtest.comparison.results import Results
from loadtest.comparison.taking_turns import measured_by, served_by
from loadtest.comparison.verdicts import are_all_met, verdicts
from loadtest.comparison.workloads import workloads as all_workloads
from loadtest.console import FAILED, tell, wait
from loadtest.options import Model, Rounds, Seed, TimeLimit
from runnerd.models import resolve_model


def compare_command(
    model: Model = "smollm2",
    workloads: Annotated[str, typer.Option(help="Names, with commas between them; all.")] = "",
    systems: Annotated[str, typer.Option(help="Names, with commas between them; all.")] = "",
    rounds: Rounds = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Ask for less, to try it.")] = False,
    only_bars: Annotated[
        bool, typer.Option("--only-bars", help="Run no more than what bars compare.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail if a bar is not met.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("comparison"),
    baseline: Annotated[
        Path | None, typer.Option(help="A baseline.json: show the change since then.")
    ] = None,
    seed: Seed = 1,
    time_limit: TimeLimit = 4 * 3600.0,
) -> None:
    """Measure systems turn by turn, write a report, and say which bars are met."""
    from loadtest.comparison.report_page.writing import (  # matplotlib: 0.5 s
        read_baseline,
        write_report,
    )

    try:
        before = None if baseline is None else read_baseline(baseline)
    except msgspec.MsgspecError as err:
        raise typer.BadParameter(f"{baseline} is no baseline: {err}") from err
    plan = replace(
        _plan(Path(resolve_model(model)), workloads, systems, rounds, seed, is_quick=quick),
        only_bars=only_bars,
    )
    results = Results(
        command=["python", "-m", "loadtest", *sys.argv[1:]],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        model=plan.model.name,
        n_rounds=rounds,
        seed=seed,
        is_quick=quick,
        machine=this_machine(),
    )
    try:
        wait(lambda: compare(plan, results, tell), time_limit)
    finally:  # what was measured is not lost when something goes wrong afterwards
        results.verdicts = verdicts(results)
        write_report(results, out, before)
    print(report_text(results, before))
    tell(f"{out} has all of it: report.html, report.json, and baseline.json to be kept")
    if check and not are_all_met(results.verdicts):
        raise typer.Exit(FAILED)


def _plan(
    model: Path, workloads: str, systems: str, n_rounds: int, seed: int, *, is_quick: bool
) -> Plan:
    """Return what the options ask for.

    Raises:
        typer.BadParameter: a name is unknown.
    """
    everything = all_workloads(is_quick=is_quick)
    peers, bounds = known(), limits()
    chosen = _chosen(systems, [*peers, *bounds], "systems")
    return Plan(
        model=model,
        workloads=[everything[name] for name in _chosen(workloads, everything, "workloads")],
        systems={name: served_by(peers[name]) for name in chosen if name in peers},
        limits={name: measured_by(bounds[name]) for name in chosen if name in bounds},
        n_rounds=n_rounds,
        seed=seed,
    )


def _chosen(named: str, available: Iterable[str], what: str) -> Sequence[str]:
    """Return the names that an option gives; all of them if it gives none."""
    names = [name.strip() for name in named.split(",") if name.strip()]
    known_names = list(available)
    unknown = [name for name in names if name not in known_names]
    if unknown:
        raise typer.BadParameter(
            f"no {what} called {', '.join(unknown)}; there are {', '.join(known_names)}"
        )
    return list(dict.fromkeys(names)) or known_names
