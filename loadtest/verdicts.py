"""The bars: what has to be shown, as data, and whether a comparison shows it.

A bar is judged where its workload and all of its systems were asked for. If one of them gave
nothing, the bar is not met: nothing has been shown. Only where the fault is not ours the outcome
is "unknown" instead of "missed".
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from loadtest.results import Outcome, Results, Verdict, WorkloadResult
from loadtest.workloads import STEADY_STREAMS

OURS = "ours"
SERVER, SMALL_BATCH = "llama-server", "llama-server-b512"
PYTHON, LIMIT, ENGINE_FREE = "python-server", "batched-bench", "engine-free"

N_SHARED = 1000 + 16 * 20  # tokens of shared-prefix: the prefix, and the tails


class Side(NamedTuple):
    """A figure of a system in a workload."""

    workload: str
    system: str
    figure: str


class Bar(NamedTuple):
    """What `ours` has to be: to `theirs` as a ratio, or by itself."""

    name: str
    ours: Side
    theirs: Side | None
    sign: Literal[">=", "<="]
    limit: float


def _to(system: str, workload: str, figure: str, sign: Literal[">=", "<="], limit: float) -> Bar:
    """Return a bar on the ratio of a figure of ours to theirs."""
    name = f"{figure} to {system}"
    ours, theirs = Side(workload, OURS, figure), Side(workload, system, figure)
    return Bar(name, ours, theirs, sign, limit)


def _alone(workload: str, figure: str, sign: Literal[">=", "<="], limit: float) -> Bar:
    """Return a bar on a figure of ours by itself."""
    return Bar(figure, Side(workload, OURS, figure), None, sign, limit)


_STEADY_16 = f"steady-{STEADY_STREAMS[-1]}"
_BEHIND = "long-behind-short"

BARS: tuple[Bar, ...] = (
    *(_to(LIMIT, f"steady-{n}", "tokens_per_s", ">=", 0.97) for n in STEADY_STREAMS),
    *(_to(SERVER, f"steady-{n}", "tokens_per_s", ">=", 1.0) for n in STEADY_STREAMS),
    _to(PYTHON, "steady-8", "tokens_per_s", ">=", 1.1),
    _to(SERVER, _STEADY_16, "itl_p99_ms", "<=", 0.2),
    _to(LIMIT, "sampled", "tokens_per_s", ">=", 0.96),
    _to(SERVER, "sampled", "tokens_per_s", ">=", 1.0),
    _to(SERVER, _BEHIND, "short.ttft_max_s", "<=", 0.1),
    _to(SMALL_BATCH, _BEHIND, "short.ttft_max_s", "<=", 0.4),
    _to(SERVER, _BEHIND, "stream.longest_gap_s", "<=", 0.05),
    _to(SMALL_BATCH, _BEHIND, "stream.longest_gap_s", "<=", 0.12),
    _to(SERVER, _BEHIND, "long.ttft_max_s", "<=", 1.25),
    Bar(
        "n_evaluated to prefix and tails",
        Side("shared-prefix", OURS, "n_evaluated"),
        None,
        "<=",
        1.1 * N_SHARED,
    ),
    _to(SERVER, "shared-prefix", "all_started_s", "<=", 0.12),
    _alone("chat", "evaluated_ratio", "<=", 1.02),
    _alone("json", "json_ratio", ">=", 0.8),
    *(_alone(workload, "jain", ">=", 0.98) for workload in ("burst", "mixed")),
    *(_alone(workload, "longest_wait", "<=", 5.0) for workload in ("burst", "mixed")),
    Bar(
        "host time of a step to the step",
        Side(_STEADY_16, ENGINE_FREE, "step_ms"),
        Side(_STEADY_16, OURS, "itl_p50_ms"),
        "<=",
        0.03,
    ),
    Bar(
        "deltas_per_s without an engine",
        Side(_STEADY_16, ENGINE_FREE, "deltas_per_s"),
        None,
        ">=",
        60_000.0,
    ),
    _to(SERVER, "contended", "tokens_per_s", ">=", 3.0),
    Bar(
        "tokens_per_s to our own on idle cores",
        Side("contended", OURS, "tokens_per_s"),
        Side("steady-8", OURS, "tokens_per_s"),
        ">=",
        0.4,
    ),
)


def verdicts(results: Results, bars: Sequence[Bar] = BARS) -> list[Verdict]:
    """Hold results against the bars that they are about; name what of ours has failed, too."""
    systems = {system.name for system in results.systems}
    judged = [
        _judge(bar, results)
        for bar in bars
        if all(side.system in systems and results.workload(side.workload) for side in _sides(bar))
    ]
    failed = [_failed(workload) for workload in results.workloads]
    return judged + [verdict for verdict in failed if verdict is not None]


def are_all_met(judged: Iterable[Verdict]) -> bool:
    """Say whether every bar is met; one that nobody could measure is not."""
    return all(verdict.outcome == "met" for verdict in judged)


def _sides(bar: Bar) -> list[Side]:
    return [side for side in (bar.ours, bar.theirs) if side is not None]


def _judge(bar: Bar, results: Results) -> Verdict:
    ours = _median(bar.ours, results)
    theirs = None if bar.theirs is None else _median(bar.theirs, results)
    against = "" if bar.theirs is None else bar.theirs.system
    value: float | None = None
    outcome: Outcome = "unknown"
    why = ""
    if ours is None:
        outcome, why = "missed", _why(bar.ours, results)
    elif bar.theirs is None:
        value = ours
    elif theirs:
        value = ours / theirs
    else:
        why = _why(bar.theirs, results)
    if value is not None:
        is_met = value >= bar.limit if bar.sign == ">=" else value <= bar.limit
        outcome = "met" if is_met else "missed"
    return Verdict(
        workload=bar.ours.workload,
        name=bar.name,
        against=against,
        sign=bar.sign,
        limit=bar.limit,
        ours=ours,
        theirs=theirs,
        value=value,
        outcome=outcome,
        why=why,
    )


def _failed(workload: WorkloadResult) -> Verdict | None:
    """Return a missed bar if turns of ours have failed, which the other bars do not count."""
    errors = [turn.error for turn in workload.turns if turn.system == OURS and turn.error]
    if not errors:
        return None
    return Verdict(
        workload=workload.name,
        name="failed turns",
        against="",
        sign="<=",
        limit=0.0,
        ours=len(errors),
        value=len(errors),
        outcome="missed",
        why=errors[0],
    )


def _median(side: Side, results: Results) -> float | None:
    result = results.workload(side.workload)
    return None if result is None else result.median(side.system, side.figure)


def _why(side: Side, results: Results) -> str:
    """Say why there is no figure."""
    result = results.workload(side.workload)
    turns = [] if result is None else result.turns
    errors = [turn.error for turn in turns if turn.system == side.system and turn.error]
    return errors[0] if errors else f"{side.system} gave no {side.figure}"
