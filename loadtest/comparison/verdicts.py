"""The bars: what has to be shown, as data, and whether a comparison shows it.

A bar is judged where its workload and all of its systems were asked for. If one of them gave
nothing, the bar is not met: nothing has been shown. Only where the fault is not ours the outcome
is "unknown" instead of "missed".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from loadtest.bars import Sign, is_within
from loadtest.comparison.results import Outcome, Results, Verdict, WorkloadResult
from loadtest.comparison.workloads import STEADY_STREAMS

OURS = "ours"
SERVER, SMALL_BATCH = "llama-server", "llama-server-b512"
PYTHON, LIMIT, ENGINE_FREE = "python-server", "batched-bench", "engine-free"

N_SHARED = 1000 + 16 * 20  # tokens of shared-prefix: the prefix, and the tails


class Side(NamedTuple):
    """A figure of a system in a workload."""

    workload: str
    system: str
    figure: str


class Claim(NamedTuple):
    """A bar before anything is measured: what `ours` is to be, as a ratio to `theirs` or by itself.

    With what was measured it is a `Verdict`: unlike `loadtest.bars.Bar`, that may be unknown.
    """

    name: str
    ours: Side
    theirs: Side | None
    sign: Sign
    limit: float


def _to(system: str, workload: str, figure: str, sign: Sign, limit: float) -> Claim:
    """Return a bar on the ratio of a figure of ours to theirs."""
    name = f"{figure} to {system}"
    ours, theirs = Side(workload, OURS, figure), Side(workload, system, figure)
    return Claim(name, ours, theirs, sign, limit)


def _alone(workload: str, figure: str, sign: Sign, limit: float) -> Claim:
    """Return a bar on a figure of ours by itself."""
    return Claim(figure, Side(workload, OURS, figure), None, sign, limit)


_STEADY_16 = f"steady-{STEADY_STREAMS[-1]}"
_BEHIND = "long-behind-short"

CLAIMS: tuple[Claim, ...] = (
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
    Claim(
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
    Claim(
        "host time of a step to the step",
        Side(_STEADY_16, ENGINE_FREE, "step_ms"),
        Side(_STEADY_16, OURS, "itl_p50_ms"),
        "<=",
        0.03,
    ),
    Claim(
        "deltas_per_s without an engine",
        Side(_STEADY_16, ENGINE_FREE, "deltas_per_s"),
        None,
        ">=",
        60_000.0,
    ),
    _to(SERVER, "contended", "tokens_per_s", ">=", 3.0),
    Claim(
        "tokens_per_s to our own on idle cores",
        Side("contended", OURS, "tokens_per_s"),
        Side("steady-8", OURS, "tokens_per_s"),
        ">=",
        0.4,
    ),
)


def compared_in(workload: str) -> set[str]:
    """Return the systems whose figures some bar takes from a workload."""
    return {side.system for claim in CLAIMS for side in _sides(claim) if side.workload == workload}


def verdicts(results: Results, claims: Sequence[Claim] = CLAIMS) -> list[Verdict]:
    """Hold results against the bars that they are about; name what of ours has failed, too."""
    systems = {system.name for system in results.systems}
    judged = [
        _judge(claim, results)
        for claim in claims
        if all(side.system in systems and results.workload(side.workload) for side in _sides(claim))
    ]
    failed = [_failed(workload) for workload in results.workloads]
    return judged + [verdict for verdict in failed if verdict is not None]


def are_all_met(judged: Iterable[Verdict]) -> bool:
    """Say whether every bar is met; one that nobody could measure is not."""
    return all(verdict.outcome == "met" for verdict in judged)


def _sides(claim: Claim) -> list[Side]:
    return [side for side in (claim.ours, claim.theirs) if side is not None]


def _judge(claim: Claim, results: Results) -> Verdict:
    ours = _median(claim.ours, results)
    theirs = None if claim.theirs is None else _median(claim.theirs, results)
    against = "" if claim.theirs is None else claim.theirs.system
    value: float | None = None
    outcome: Outcome = "unknown"
    why = ""
    if ours is None:
        outcome, why = "missed", _why(claim.ours, results)
    elif claim.theirs is None:
        value = ours
    elif theirs:
        value = ours / theirs
    else:
        why = _why(claim.theirs, results)
    if value is not None:
        outcome = "met" if is_within(value, claim.sign, claim.limit) else "missed"
    return Verdict(
        workload=claim.ours.workload,
        name=claim.name,
        against=against,
        sign=claim.sign,
        limit=claim.limit,
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
