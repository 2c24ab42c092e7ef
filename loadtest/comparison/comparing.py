"""Who runs when: systems turn by turn, A B A B, so that what else the machine does meets all.

Every turn is a process of its own, so that nothing is left from the turn before: what a workload
says about warm state (chat, shared-prefix) it makes itself, within its turn. One short request
comes before each, and counts for nothing: it touches the memory that a system touches only once.
A system that cannot run a workload is in the report with the reason, and is not tried again for
that workload.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from loadtest.comparison.exchange import Setup
from loadtest.comparison.results import Results, Spread, SystemSeen, Turn, WorkloadResult
from loadtest.comparison.taking_turns import Entrant, Task, take_turn
from loadtest.comparison.verdicts import compared_in
from loadtest.comparison.workloads import Workload
from loadtest.console import Tell
from loadtest.projector import make_projector
from loadtest.toy import TOY

# What a line of progress says of a turn: the first figures of these that it has.
TOLD = ("short.ttft_max_s", "tokens_per_s", "itl_p99_ms", "longest_gap_s", "n_evaluated", "step_ms")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare, and how often. `turn_limit_s`: after that a turn has failed.

    `systems` serve every workload, `limits` are measured where a workload names them; with
    `only_bars` no more of either than bars compare.
    """

    model: Path
    workloads: Sequence[Workload]
    systems: Mapping[str, Entrant]
    limits: Mapping[str, Entrant]
    n_rounds: int
    seed: int = 1
    turn_limit_s: float = 600.0
    only_bars: bool = False


async def compare(plan: Plan, results: Results, tell: Tell) -> None:
    """Run every workload, one after the other, and add to results what comes of it.

    They are whole after every round: who is interrupted has what was measured until then.
    """
    seen = {name: SystemSeen(name=name) for name in plan.systems}
    seen |= {name: SystemSeen(name=name, is_limit=True) for name in plan.limits}
    results.systems = list(seen.values())
    for workload in plan.workloads:
        if plan.only_bars and not compared_in(workload.name):
            continue
        setup = _setup(plan.model, workload)
        result = WorkloadResult(name=workload.name, about=workload.about, setup=setup)
        results.workloads.append(result)
        with TemporaryDirectory(prefix="loadtest-") as folder:
            if workload.needs_projector:
                path = Path(folder, "mmproj.gguf")
                try:
                    make_projector(plan.model, "phi4", TOY).write(path)
                except ValueError as err:
                    result.error = f"no projector can be made for the model: {err}"
                    tell(f"{workload.name}: {result.error}")
                    continue
                result.setup = replace(setup, projector=path)
            await _run(plan, workload, seen, result, tell)


def summaries(turns: Sequence[Turn]) -> dict[str, dict[str, Spread]]:
    """Return the spread of each figure of each system, over the turns that count."""
    values: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        of_system = values.setdefault(turn.system, {})
        if not turn.error:
            for name, value in turn.figures.items():
                of_system.setdefault(name, []).append(value)
    return {
        system: {name: _spread(of_figure) for name, of_figure in of_system.items()}
        for system, of_system in values.items()
    }


async def _run(
    plan: Plan,
    workload: Workload,
    seen: Mapping[str, SystemSeen],
    result: WorkloadResult,
    tell: Tell,
) -> None:
    entrants = dict(plan.systems)
    entrants |= {name: who for name, who in plan.limits.items() if name in workload.limits}
    if plan.only_bars:
        compared = compared_in(workload.name)
        entrants = {name: who for name, who in entrants.items() if name in compared}
    for n_round in range(plan.n_rounds):
        task = Task(workload, result.setup, n_round, plan.seed + n_round, plan.turn_limit_s)
        for name, entrant in list(entrants.items()):
            turn = await take_turn(entrant, seen[name], task)
            result.turns.append(turn)
            tell(_progress(workload, turn, plan.n_rounds))
            if turn.is_absent:
                del entrants[name]
        result.summaries = summaries(result.turns)


def _setup(model: Path, workload: Workload) -> Setup:
    return Setup(
        model=model,
        n_slots=workload.n_slots,
        n_ctx=workload.n_ctx,
        n_threads=len(os.sched_getaffinity(0)),
    )


def _progress(workload: Workload, turn: Turn, n_rounds: int) -> str:
    told = [f"{name} {turn.figures[name]:.4g}" for name in TOLD if name in turn.figures]
    what = turn.error.splitlines()[0] if turn.error else ", ".join(told)
    return f"{workload.name}, round {turn.n_round + 1} of {n_rounds}: {turn.system}: {what}"


def _spread(values: Sequence[float]) -> Spread:
    return Spread(
        median=median(values), least=min(values), greatest=max(values), n_turns=len(values)
    )
