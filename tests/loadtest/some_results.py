"""Results of a comparison that never was: two systems, a limit, and one that cannot be run."""

from pathlib import Path
from random import Random
from statistics import median

from loadtest.comparison.exchange import Exchange, Setup, Usage
from loadtest.comparison.figures import measure_exchanges
from loadtest.comparison.results import (
    Machine,
    Results,
    Spread,
    SystemSeen,
    Turn,
    Verdict,
    WorkloadResult,
)

HOSTILE = "<script>alert('x')</script> & \"quotes\" $x^2$ | \x1b[31mred\x1b[0m [bold]"
PACE_S = {"ours": 0.05, "llama-server": 0.055}


def stream(role: str, asked_at: float, first_s: float, pace_s: float, n_tokens: int) -> Exchange:
    arrivals = [(asked_at + first_s + pace_s * n, 1) for n in range(n_tokens)]
    return Exchange(
        role=role,
        n_prompt=128,
        n_evaluated=128,
        asked_at=asked_at,
        arrivals=arrivals,
        ended_at=arrivals[-1][0],
        ended="length",
    )


def steady(pace_s: float, n_streams: int, rng: Random) -> list[Exchange]:
    return [
        stream("stream", 0.0, 0.3 + rng.random(), pace_s * (1 + 0.1 * n_streams), 32)
        for _ in range(n_streams)
    ]


def behind(pace_s: float, n_streams: int, stops_s: float) -> list[Exchange]:
    """Streams that stop for a while when a long prompt comes at 3 s, and a short one after it."""
    streams = []
    for number in range(n_streams):
        each = stream("stream", 0.1 * number, 0.4, pace_s, 200)
        each.arrivals = [(at + stops_s * (at > 3.2), n) for at, n in each.arrivals]
        streams.append(each)
    long = stream("long", 3.0, 0.5 + max(stops_s, 5.0), pace_s, 32)
    short = stream("short", 3.5, 0.2 + stops_s, pace_s, 32)
    return [*streams, long, short]


def workload(
    name: str, n_slots: int, of_systems: dict[str, list[list[Exchange]]]
) -> WorkloadResult:
    turns = [
        Turn(
            system=system,
            n_round=n_round,
            figures=measure_exchanges(exchanges, n_slots),
            exchanges=exchanges,
            used=Usage(int(3e8 + 1e6 * n_round), int(1.5e8), 2.0),
        )
        for system, rounds in of_systems.items()
        for n_round, exchanges in enumerate(rounds)
    ]
    summaries: dict[str, dict[str, Spread]] = {}
    for system in of_systems:
        of_one = [turn.figures for turn in turns if turn.system == system]
        summaries[system] = {
            figure: Spread(
                median=median(each[figure] for each in of_one),
                least=min(each[figure] for each in of_one),
                greatest=max(each[figure] for each in of_one),
                n_turns=len(of_one),
            )
            for figure in of_one[0]
        }
    setup = Setup(model=Path("a-model.gguf"), n_slots=n_slots, n_ctx=512)
    return WorkloadResult(
        name=name, about="What it shows.", setup=setup, turns=turns, summaries=summaries
    )


def some_results() -> Results:
    rng = Random(1)
    steadies = [
        workload(
            f"steady-{n}",
            n,
            {name: [steady(pace, n, rng) for _ in range(2)] for name, pace in PACE_S.items()},
        )
        for n in (1, 4, 16)
    ]
    for each in steadies:
        best = each.summaries["ours"]["tokens_per_s"]
        each.turns.append(Turn(system="batched-bench", n_round=0, figures={"tokens_per_s": 9.0}))
        each.summaries["batched-bench"] = {"tokens_per_s": best}
    stops = {"ours": 0.1, "llama-server": 4.0}
    long_behind_short = workload(
        "long-behind-short", 6, {name: [behind(0.06, 4, stop)] for name, stop in stops.items()}
    )
    shared = workload(
        "shared-prefix", 16, {name: [steady(pace, 16, rng)] for name, pace in PACE_S.items()}
    )
    shared.summaries["ours"]["n_evaluated"] = Spread(
        median=300.0, least=300.0, greatest=300.0, n_turns=1
    )
    met = Verdict(
        workload="steady-16",
        name="tokens_per_s to llama-server",
        against="llama-server",
        sign=">=",
        limit=1.0,
        ours=310.0,
        theirs=290.0,
        value=310 / 290,
        outcome="met",
    )
    missed = Verdict(
        workload="chat", name="evaluated_ratio", against="", sign="<=", limit=1.02, outcome="missed"
    )
    return Results(
        command=["python", "-m", "loadtest", "compare", "--rounds", "2"],
        started="2026-01-31T12:00:00+00:00",
        model="a-model.gguf",
        n_rounds=2,
        seed=1,
        is_quick=False,
        machine=Machine(
            cpu="A Processor <9>",
            n_cores=2,
            memory_bytes=8 * 10**9,
            kernel="Linux 6.1",
            python="3.11.9",
        ),
        systems=[
            SystemSeen(name="ours", version="0.1.0", commands=[["runnerd", "serve"]]),
            SystemSeen(name="llama-server", version="b1", commands=[["llama-server", "-c", "1"]]),
            SystemSeen(name="batched-bench", is_limit=True),
            SystemSeen(name="python-server", error=HOSTILE),
        ],
        workloads=[*steadies, long_behind_short, shared],
        verdicts=[met, missed],
    )
