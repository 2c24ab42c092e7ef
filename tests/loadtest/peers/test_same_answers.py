"""Peers that were built, with a real model: what they pick greedily is what our daemon picks.

Skipped where `python -m loadtest peers` has not been run.
"""

from pathlib import Path

import pytest

from loadtest.comparison.exchange import Exchange, PeerUnavailable, Setup
from loadtest.comparison.peers import known
from loadtest.comparison.peers.batched_bench import run_batched_bench
from runnerd.models import resolve_model
from tests.loadtest.peers.asking import exchange_with
from tests.processes import needs_model

pytestmark = [pytest.mark.anyio, pytest.mark.llama, needs_model]

# What comes next is beyond doubt, so that no rounding decides which token is the likeliest.
COUNTING = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,"


@pytest.fixture
def setup() -> Setup:
    return Setup(model=Path(resolve_model("smollm2")), n_slots=2, n_ctx=256, n_threads=1)


async def answer(system: str, setup: Setup) -> Exchange:
    async with known()[system](setup) as peer:
        return await exchange_with(peer, *await peer.tokenize(COUNTING), max_tokens=8)


async def test_greedy_answers_of_all_systems_are_the_same(setup: Setup) -> None:
    try:
        others = [await answer(system, setup) for system in ("llama-server", "python-server")]
    except PeerUnavailable as err:
        pytest.skip(str(err))
    ours = await answer("ours", setup)
    assert (ours.ended, ours.n_generated) == ("length", 8)
    for theirs in others:
        assert (theirs.text, theirs.tokens) == (ours.text, ours.tokens)
        assert (theirs.ended, theirs.n_evaluated) == ("length", ours.n_evaluated)


async def test_the_bench_measures_every_number_of_streams(setup: Setup) -> None:
    try:
        runs = await run_batched_bench(setup, 8, 4, [1, 2])
    except PeerUnavailable as err:
        pytest.skip(str(err))
    for run in runs:
        assert [(row.n_streams, row.n_generated) for row in run.rows] == [(1, 4), (2, 4)]
        assert all(row.decode_tokens_per_s > 0 for row in run.rows)
