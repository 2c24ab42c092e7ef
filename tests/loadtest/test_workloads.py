"""Workloads on a daemon with the reference engine: all of them give what they promise."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import psutil
import pytest

from loadtest.comparison.busy import busy_core
from loadtest.comparison.exchange import Exchange, Peer, Setup
from loadtest.comparison.figures import measure_exchanges
from loadtest.comparison.peers.ours import OurDaemon, start_ours
from loadtest.comparison.workloads import Drive, workloads
from loadtest.comparison.workloads.asking import Prompts
from loadtest.comparison.workloads.beside import (
    embedding_figures,
    embeddings,
    images,
    json,
    json_figures,
)
from loadtest.comparison.workloads.chat import chat, chat_figures
from loadtest.comparison.workloads.mixed import arrivals, mixed
from loadtest.comparison.workloads.prefill import long_behind_short, shared_prefix, two_longs
from loadtest.comparison.workloads.streams import burst, contended, sampled, steady
from tests.scripted_peer import ScriptedPeer, answer_at_once

pytestmark = pytest.mark.anyio

N_SLOTS = 6

seeds = count(10)  # all run on one daemon, whose caches must not help


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the one that the command runs on


@pytest.fixture(scope="module")
async def daemon() -> AsyncIterator[OurDaemon]:
    setup = Setup(model=Path("layers=0"), n_slots=N_SLOTS, n_ctx=4096, n_threads=1)
    async with start_ours(setup, options=["--engine=reference"]) as peer:
        yield peer


async def driven(peer: Peer, drive: Drive) -> list[Exchange]:
    """Run a workload; every request of it has ended, and none failed."""
    exchanges = await drive(peer, next(seeds))
    assert [each.error for each in exchanges if each.error] == []
    assert {each.ended for each in exchanges} <= {"length", "cancelled"}
    assert all(each.ended_at >= each.asked_at for each in exchanges)
    return exchanges


@pytest.mark.parametrize("drive", [steady, sampled, contended])
async def test_equal_streams_all_get_what_they_ask_for(
    daemon: OurDaemon, drive: Callable[..., Awaitable[list[Exchange]]]
) -> None:
    exchanges = await driven(daemon, partial(drive, n_streams=8, n_generated=20))
    assert [(each.n_prompt, each.n_generated) for each in exchanges] == [(128, 20)] * 8


async def test_a_burst_is_more_short_prompts_than_there_are_slots(daemon: OurDaemon) -> None:
    exchanges = await driven(daemon, partial(burst, n_streams=2 * N_SLOTS, n_generated=16))
    assert [(each.n_prompt, each.n_generated) for each in exchanges] == [(32, 16)] * 2 * N_SLOTS


async def test_a_short_prompt_comes_while_streams_generate_and_a_long_one_waits(
    daemon: OurDaemon,
) -> None:
    exchanges = await driven(daemon, partial(long_behind_short, n_long=1000))
    by_role = {each.role: each for each in exchanges}
    assert [each.role for each in exchanges] == ["stream"] * 4 + ["long", "short"]
    assert (by_role["long"].n_prompt, by_role["short"].n_prompt) == (1000, 20)
    assert by_role["short"].asked_at >= by_role["long"].asked_at + 0.5
    assert by_role["short"].n_generated == by_role["long"].n_generated == 32
    assert max(each.arrivals[0][0] for each in exchanges[:4]) < by_role["long"].asked_at


async def test_two_long_prompts_come_at_once(daemon: OurDaemon) -> None:
    exchanges = await driven(daemon, partial(two_longs, n_long=600))
    assert [each.role for each in exchanges] == ["stream"] * 4 + ["long"] * 2
    assert [each.n_generated for each in exchanges[4:]] == [32, 32]


async def test_requests_with_one_beginning_have_ends_of_their_own(daemon: OurDaemon) -> None:
    exchanges = await driven(daemon, partial(shared_prefix, n_requests=4, n_prefix=200))
    assert [each.n_prompt for each in exchanges] == [220] * 4
    assert measure_exchanges(exchanges, 4)["n_evaluated"] <= 1.1 * (200 + 4 * 20)


async def test_a_turn_repeats_all_before_it_and_only_what_is_new_is_evaluated(
    daemon: OurDaemon,
) -> None:
    exchanges = await driven(daemon, partial(chat, n_conversations=2, n_turns=3))
    assert [each.role for each in exchanges] == ["turn 1", "turn 2", "turn 3"] * 2
    for before, turn in pairwise(exchanges[:3]):
        assert turn.n_prompt >= before.n_prompt + before.n_generated + 60
    assert chat_figures(exchanges)["evaluated_ratio"] <= 1.02


def test_a_turn_that_is_evaluated_whole_has_a_ratio_above_one() -> None:
    turns = [
        Exchange(role=f"turn {n}", n_prompt=100 * n, asked_at=0.0, n_evaluated=100 * n)
        for n in (1, 2, 3)
    ]
    for turn in turns:
        turn.arrivals = [(1.0, 41)]
    assert chat_figures(turns)["evaluated_ratio"] == pytest.approx((200 + 300) / (60 + 60))
    assert chat_figures(turns[:1]) == {}
    turns[-1].n_evaluated = None
    assert chat_figures(turns) == {}, "nobody knows"


async def test_what_comes_at_any_time_is_served_and_some_is_given_up(daemon: OurDaemon) -> None:
    exchanges = await mixed(daemon, 7, n_requests=6, rate_per_s=20.0)
    expected = arrivals(7, 6, 20.0)
    assert [each.n_prompt for each in exchanges] == [each.n_prompt for each in expected]
    for each, arrival in zip(exchanges, expected, strict=True):
        assert (each.ended == "cancelled") == bool(arrival.cancel_after)


def test_arrivals_are_those_of_the_seed_and_have_the_lengths_that_are_allowed() -> None:
    found = arrivals(3, 400, 2.5)
    assert found == arrivals(3, 400, 2.5)
    assert found != arrivals(4, 400, 2.5)
    assert all(8 <= each.n_prompt <= 1200 and 12 <= each.max_tokens <= 192 for each in found)
    assert found[-1].after_s / 400 == pytest.approx(0.4, rel=0.2)
    assert 30 < sum(each.cancel_after > 0 for each in found) < 90


async def test_as_many_streams_run_with_a_schema_beside_them_as_without() -> None:
    peer = ScriptedPeer("words", answer_at_once)
    exchanges = await driven(peer, partial(json, n_streams=5, n_generated=24))
    roles = [each.role for each in exchanges]
    assert roles == ["alone"] * 5 + ["free"] * 2 + ["constrained"] * 3
    assert [ask.role for ask in peer.asked if ask.json_schema] == ["constrained"] * 3


def test_what_a_schema_costs_is_the_pace_beside_it_to_the_pace_without() -> None:
    def stream(role: str, step_s: float) -> Exchange:
        arrivals = [(step_s * n, 1) for n in range(1, 10)]
        return Exchange(role=role, n_prompt=1, asked_at=0.0, arrivals=arrivals)

    seen = [stream("alone", 0.5), stream("alone", 0.5)]
    slower = [stream("free", 0.625), stream("constrained", 0.625)]
    assert json_figures([*seen, *slower])["json_ratio"] == pytest.approx(0.8)
    assert json_figures(seen) == {}


async def test_embeddings_are_made_while_streams_generate(daemon: OurDaemon) -> None:
    exchanges = await driven(daemon, partial(embeddings, n_streams=2, n_generated=100))
    embedded = [each for each in exchanges if each.role == "embedding"]
    beside = [each for each in exchanges if each.role == "beside"]
    assert embedded
    assert max(each.asked_at for each in embedded) <= max(each.ended_at for each in beside)
    assert embedding_figures(exchanges)["embedded_per_s"] > 0
    assert embedding_figures(beside) == {}


async def test_images_come_while_streams_generate(daemon: OurDaemon) -> None:
    exchanges = await driven(daemon, partial(images, n_images=2))
    assert [each.role for each in exchanges] == ["stream"] * 4 + ["image"] * 2
    assert [each.n_generated for each in exchanges[4:]] == [16, 16]


async def test_prompts_are_those_of_the_seed_and_no_two_begin_alike() -> None:
    peer = ScriptedPeer("words", answer_at_once)
    first, again, other = Prompts(peer, 1), Prompts(peer, 1), Prompts(peer, 2)
    assert await first.several(3, 20) == await again.several(3, 20)
    assert await other.new(20) != await again.new(20)


async def test_a_core_is_busy_as_long_as_the_block_lasts() -> None:
    async with busy_core() as pid:
        process = psutil.Process(pid)
        assert len(process.cpu_affinity()) == 1
    assert not psutil.pid_exists(pid)


def test_every_workload_says_what_it_shows_and_quick_ones_are_the_same() -> None:
    assert all(each.about.endswith(".") for each in workloads().values())
    assert list(workloads()) == list(workloads(is_quick=True))
