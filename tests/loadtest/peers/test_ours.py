"""Our own daemon as a peer, with the engine that needs no model."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest.comparison.exchange import PeerUnavailable
from loadtest.comparison.peers.ours import OurDaemon, start_ours
from tests.loadtest.peers.asking import exchange_with, setup_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def peer(anyio_backend: str) -> AsyncIterator[OurDaemon]:
    async with start_ours(setup_of(Path("layers=1")), ["--engine=reference"]) as daemon:
        yield daemon


async def test_every_token_is_counted_and_the_cache_is_seen(peer: OurDaemon) -> None:
    prompt = await peer.tokenize("Once upon a time")
    first = await exchange_with(peer, *prompt, max_tokens=12)
    again = await exchange_with(peer, *prompt, max_tokens=12)
    assert (first.n_generated, len(first.tokens), first.ended) == (12, 12, "length")
    assert first.asked_at < first.arrivals[0][0] <= first.ended_at
    assert (first.n_evaluated, again.n_evaluated) == (len(prompt) + 1, 1)  # a begin token, too
    assert again.tokens == first.tokens


async def test_a_request_that_has_enough_is_cancelled(peer: OurDaemon) -> None:
    exchange = await exchange_with(peer, 5, 6, max_tokens=900, cancel_after=4)
    assert (exchange.ended, exchange.n_evaluated) == ("cancelled", None)
    assert 4 <= exchange.n_generated < 900


async def test_a_request_that_cannot_be_served_has_failed(peer: OurDaemon) -> None:
    exchange = await exchange_with(peer, *[5] * 5000)
    assert (exchange.ended, exchange.n_generated) == ("failed", 0)
    assert "prompt_too_long" in exchange.error


async def test_it_says_what_it_is_and_what_it_uses(peer: OurDaemon) -> None:
    used = await peer.usage()
    assert "--slots=3" in peer.command
    assert peer.version.startswith("runnerd ")
    assert 10**6 < used.anonymous_bytes < used.resident_bytes
    assert used.cpu_s > 0


async def test_embeddings_are_timed(peer: OurDaemon) -> None:
    assert await peer.embed([[5, 6], [7]]) > 0


async def test_a_model_that_is_not_there_makes_it_unavailable(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="our daemon cannot run here"):
        async with start_ours(setup_of(tmp_path / "no-model.gguf")):
            pass
