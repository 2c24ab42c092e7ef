"""What was written is read again."""

from pathlib import Path

import msgspec
import pytest

from loadtest.comparison.exchange import Exchange, Setup, Usage
from loadtest.comparison.machine import this_machine
from loadtest.comparison.results import (
    Results,
    Spread,
    SystemSeen,
    Turn,
    Verdict,
    WorkloadResult,
    decode,
    encode,
)


def make_results() -> Results:
    exchange = Exchange(
        role="stream", n_prompt=4, asked_at=1.0, arrivals=[(1.5, 2), (1.75, 1)], ended="length"
    )
    turn = Turn(
        system="ours",
        n_round=0,
        figures={"tokens_per_s": 4.0},
        exchanges=[exchange],
        idle=Usage(10, 5, 0.5),
    )
    return Results(
        command=["python"],
        started="2026-01-01T00:00:00+00:00",
        model="model.gguf",
        n_rounds=1,
        seed=1,
        is_quick=False,
        machine=this_machine(),
        systems=[SystemSeen(name="ours", error="<script>")],
        workloads=[
            WorkloadResult(
                name="steady-1",
                about="Streams.",
                setup=Setup(model=Path("/m/model.gguf"), n_slots=1, n_ctx=64),
                turns=[turn],
                summaries={
                    "ours": {"tokens_per_s": Spread(median=4, least=4, greatest=4, n_turns=1)}
                },
            )
        ],
        verdicts=[
            Verdict(workload="steady-1", name="x", against="", sign=">=", limit=1.0, value=4.0)
        ],
    )


def test_a_report_is_read_as_it_was_written() -> None:
    results = make_results()
    assert decode(encode(results)) == results


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(b'{"machine": 1}')


def test_a_median_that_nobody_has_measured_is_none() -> None:
    [workload] = make_results().workloads
    assert workload.median("ours", "tokens_per_s") == 4.0
    assert workload.median("ours", "jain") is None
    assert workload.median("others", "tokens_per_s") is None
