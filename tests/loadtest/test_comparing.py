"""Who runs when, and what becomes of those that fail."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import numpy as np
import pytest

from loadtest.comparison.comparing import Plan, compare, summaries
from loadtest.comparison.exchange import Exchange, Peer, PeerUnavailable, Setup
from loadtest.comparison.limits import Limit, Measured
from loadtest.comparison.machine import this_machine
from loadtest.comparison.results import Results, SystemSeen, Turn, WorkloadResult
from loadtest.comparison.taking_turns import Entrant, measured_by, served_by
from loadtest.comparison.workloads import Steady, Workload
from loadtest.comparison.workloads.streams import steady
from loadtest.gguf import write_gguf
from tests.scripted_peer import (
    ScriptedPeer,
    absent,
    answer_at_once,
    fail_to_stream,
    scripted,
)

pytestmark = pytest.mark.anyio


def workload(name: str = "steady-2", limits: tuple[str, ...] = ()) -> Workload:
    drive = partial(steady, n_streams=2, n_generated=12)
    return Workload(name, drive, 2, 512, steady=Steady(2, 128, 12), limits=limits)


def plan(
    systems: dict[str, Entrant],
    *workloads: Workload,
    limits: dict[str, Entrant] | None = None,
    n_rounds: int = 2,
    turn_limit_s: float = 60.0,
) -> Plan:
    return Plan(
        model=Path("model.gguf"),
        workloads=workloads or [workload()],
        systems=systems,
        limits=limits or {},
        n_rounds=n_rounds,
        turn_limit_s=turn_limit_s,
    )


def serving(name: str, log: list[str]) -> Entrant:
    return served_by(scripted(ScriptedPeer(name, answer_at_once), log))


def takers(result: WorkloadResult) -> list[str]:
    return [f"{turn.system}{turn.n_round}" for turn in result.turns]


async def compared(
    plan: Plan, told: list[str] | None = None
) -> tuple[list[SystemSeen], list[WorkloadResult]]:
    results = no_results()
    lines = [] if told is None else told
    await compare(plan, results, lines.append)
    return results.systems, results.workloads


def no_results() -> Results:
    return Results(
        command=[],
        started="",
        model="model.gguf",
        n_rounds=2,
        seed=1,
        is_quick=True,
        machine=this_machine(),
    )


async def test_only_what_bars_compare_takes_turns_if_that_is_all_that_is_wanted() -> None:
    log: list[str] = []
    systems = {name: serving(name, log) for name in ("ours", "llama-server", "python-server")}
    asked = plan(systems, workload("steady-1"), workload("two-longs"), n_rounds=1)
    _, workloads = await compared(replace(asked, only_bars=True))
    assert {each.name: takers(each) for each in workloads} == {
        "steady-1": ["ours0", "llama-server0"]  # of eight streams alone the third is wanted
    }


async def test_systems_take_turns_each_in_a_process_of_its_own() -> None:
    log: list[str] = []
    systems = {name: serving(name, log) for name in "ab"}
    _, [first, second] = await compared(plan(systems, workload("x"), workload("y")))
    assert takers(first) == takers(second) == ["a0", "b0", "a1", "b1"]
    assert log == ["a starts", "a ends", "b starts", "b ends"] * 4


async def test_every_system_is_asked_the_same_and_every_round_something_else() -> None:
    peers = [ScriptedPeer(name, answer_at_once) for name in "ab"]
    systems = {peer.name: served_by(scripted(peer, [])) for peer in peers}
    await compared(plan(systems))
    one, other = (
        {tuple(ask.prompt) for ask in peer.asked if ask.role == "stream"} for peer in peers
    )
    assert one == other
    assert len(one) == 4


async def test_what_comes_before_a_turn_counts_for_nothing() -> None:
    _, [result] = await compared(plan({"a": serving("a", [])}, n_rounds=1))
    [turn] = result.turns
    assert [each.role for each in turn.exchanges] == ["stream", "stream"]
    assert result.median("a", "n_generated") == 24
    assert not [each for each in turn.exchanges if each.tokens or each.text]
    assert turn.idle is not None
    assert turn.used is not None


async def test_what_the_client_costs_is_in_the_figures() -> None:
    _, [result] = await compared(plan({"a": serving("a", [])}, n_rounds=1))
    client_us = result.median("a", "client_us")
    assert client_us is not None
    assert client_us > 0


async def test_a_system_that_is_not_there_is_told_once_and_left_out() -> None:
    told: list[str] = []
    seen, [result] = await compared(plan({"gone": served_by(absent), "b": serving("b", [])}), told)
    assert takers(result) == ["gone0", "b0", "b1"]
    assert [system.error for system in seen] == ["it is not built here", ""]
    assert "gone: it is not built here" in told[0]
    assert result.median("gone", "tokens_per_s") is None


async def test_a_turn_with_failed_requests_says_so_and_does_not_count() -> None:
    failing = served_by(scripted(ScriptedPeer("a", fail_to_stream), []))
    seen, [result] = await compared(plan({"a": failing}))
    assert takers(result) == ["a0", "a1"]
    assert result.turns[0].error == "2 of 2 requests failed: it is <b>full</b>"
    assert result.summaries == {"a": {}}
    assert seen[0].error == "", "it could be run"


async def test_a_turn_that_takes_too_long_is_ended_and_said_to_be() -> None:
    async def stuck(_peer: Peer, _seed: int) -> list[Exchange]:
        await anyio.sleep_forever()
        raise AssertionError

    log: list[str] = []
    hangs = Workload("hangs", stuck, 2, 512)
    systems = {"a": serving("a", log)}
    _, [result] = await compared(plan(systems, hangs, n_rounds=1, turn_limit_s=0.05))
    assert result.turns[0].error == "not done within 0.05 s"
    assert result.summaries == {"a": {}}


async def test_a_limit_is_measured_only_where_a_workload_names_it() -> None:
    async def bench(_setup: Setup, load: Steady) -> Measured:
        return Measured({"tokens_per_s": 100.0 * load.n_streams}, ["bench"])

    async def gone(_setup: Setup, _load: Steady) -> Measured:
        raise PeerUnavailable("no bench")

    limits: dict[str, Limit] = {"bench": bench, "gone": gone}
    seen, [with_limits, without] = await compared(
        plan(
            {"a": serving("a", [])},
            workload("x", limits=("bench", "gone")),
            workload("y"),
            limits={name: measured_by(limit) for name, limit in limits.items()},
        ),
    )
    assert takers(with_limits) == ["a0", "bench0", "gone0", "a1", "bench1"]
    assert takers(without) == ["a0", "a1"]
    assert with_limits.median("bench", "tokens_per_s") == 200.0
    assert [(system.commands, system.error) for system in seen if system.is_limit] == [
        ([["bench"]], ""),
        ([], "no bench"),
    ]


async def test_a_workload_that_the_model_has_nothing_for_is_named_and_the_others_are_run(
    tmp_path: Path,
) -> None:
    sees = replace(workload("images"), needs_projector=True)
    asked = plan({"a": serving("a", [])}, sees, workload("y"))
    model = tmp_path / "model.gguf"
    words = {"general.architecture": "llama", "tokenizer.ggml.tokens": "one"}
    write_gguf(model, words, {"token_embd.weight": np.zeros((1, 32), np.float32)})
    _, [images, other] = await compared(replace(asked, model=model))
    assert images.error.startswith("no projector can be made for the model: ")
    assert (images.turns, takers(other)) == ([], ["a0", "a1"])


async def test_a_fault_of_our_own_ends_the_comparison() -> None:
    async def broken(_peer: Peer, _seed: int) -> list[Exchange]:
        raise ZeroDivisionError

    systems = {"a": serving("a", [])}
    with pytest.raises(ZeroDivisionError):
        await compared(plan(systems, Workload("broken", broken, 2, 512)))


async def test_who_is_interrupted_has_the_rounds_that_were_done() -> None:
    def interrupt(line: str) -> None:
        if "round 2" in line:
            raise KeyboardInterrupt

    results = no_results()
    with pytest.raises(KeyboardInterrupt):
        await compare(plan({"a": serving("a", [])}, n_rounds=3), results, interrupt)
    [result] = results.workloads
    assert result.summaries["a"]["n_generated"].n_turns == 1
    assert [system.version for system in results.systems] == ["a 1.0"]


def test_what_is_typical_is_the_median_of_the_turns_that_count() -> None:
    turns = [
        Turn(system="a", n_round=n, figures={"tokens_per_s": value}, error=error)
        for n, (value, error) in enumerate([(1.0, ""), (9.0, "failed"), (3.0, ""), (2.0, "")])
    ]
    spread = summaries(turns)["a"]["tokens_per_s"]
    assert (spread.median, spread.least, spread.greatest, spread.n_turns) == (2.0, 1.0, 3.0, 3)
