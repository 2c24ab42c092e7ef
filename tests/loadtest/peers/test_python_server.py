"""The Python example server's adapter, against a script that answers as it has been seen to."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from anyio import to_thread

from loadtest.comparison.exchange import PeerUnavailable, Sampling
from loadtest.comparison.peers.places import places
from loadtest.comparison.peers.python_server import start_python_server
from loadtest.comparison.peers.vocabulary import vocabulary
from runnerd.models import resolve_model
from tests.loadtest.peers import recorded_servers
from tests.loadtest.peers.asking import exchange_with, setup_of
from tests.loadtest.peers.conftest import Asked
from tests.loadtest.peers.recorded_servers import ENDLESS, FINE
from tests.processes import needs_model

pytestmark = [
    *(pytest.mark.anyio, pytest.mark.llama, needs_model),
    pytest.mark.usefixtures("asked", "script"),
]
END = 2  # of SmolLM2, whose prompts have no begin token


@pytest.fixture
def model() -> Path:
    return Path(resolve_model("smollm2"))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = places()
    built.python_server.parent.mkdir(parents=True)
    built.python_packages.mkdir()
    shutil.copy(recorded_servers.__file__, built.python_server)


async def test_pieces_of_text_count_as_tokens_and_the_rest_at_the_end(model: Path) -> None:
    async with start_python_server(setup_of(model)) as peer:
        exchange = await exchange_with(peer, 5, FINE, max_tokens=8)
    assert [n_tokens for _, n_tokens in exchange.arrivals] == [1, 1, 6]
    assert (exchange.text, exchange.ended) == ("aé", "length")
    with vocabulary(model) as words:
        assert exchange.tokens == words.tokenize("aé")


async def test_what_the_counter_has_grown_by_goes_to_the_request_that_ends(model: Path) -> None:
    async with start_python_server(setup_of(model)) as peer:
        counts = [(await exchange_with(peer, 5, FINE)).n_evaluated for _ in range(3)]
    assert counts == [7, 7, 7]


async def test_what_it_cannot_do_fails_and_is_not_asked(
    model: Path, asked: Callable[[], Asked]
) -> None:
    async with start_python_server(setup_of(model)) as peer:
        exchange = await exchange_with(peer, 5, FINE, json_schema={"type": "null"})
    assert (exchange.ended, "schemas" in exchange.error) == ("failed", True)
    assert [path for path, _ in asked()] == ["settings"]


async def test_a_client_that_has_enough_goes_away(model: Path, left: Path) -> None:
    async with start_python_server(setup_of(model)) as peer:
        exchange = await exchange_with(peer, 5, ENDLESS, cancel_after=3)
        assert (exchange.ended, exchange.n_generated) == ("cancelled", 3)
        assert await to_thread.run_sync(left.read_text) == "they have left"


async def test_setup_and_requests_are_put_in_its_words(
    model: Path, asked: Callable[[], Asked]
) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.8, seed=9)
    async with start_python_server(setup_of(model)) as peer:
        await exchange_with(peer, 5, FINE, sampling=sampling)
        assert peer.command[:2] == [sys.executable, str(places().python_server)]
    (_, settings), (path, body) = asked()
    assert settings["model"] == {
        "path": str(model),
        "n_seq_max": 3,
        "n_ctx": 3072,
        "n_batch": 2048,
        "n_ubatch": 512,
        "threads": 1,
        "threads_batch": 1,
        "kv_unified": False,
    }
    assert (path, body["prompt"], body["max_tokens"]) == ("/v1/completions", [5, FINE], 8)
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.8, 9)
    bias = body["logit_bias"]
    assert isinstance(bias, dict)
    assert bias[str(END)] <= -100


async def test_embeddings_have_a_server_of_their_own(
    model: Path, asked: Callable[[], Asked]
) -> None:
    async with start_python_server(setup_of(model)) as peer:
        assert await peer.embed([[1, 2], [3]]) > 0
    assert asked()[-1] == ("/v1/embeddings", {"model": "", "input": [[1, 2], [3]]})


async def test_a_file_that_is_no_model_makes_it_unavailable(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    with pytest.raises(PeerUnavailable, match="vocabulary"):
        async with start_python_server(setup_of(model)):
            pass
