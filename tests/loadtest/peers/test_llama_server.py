"""llama-server's adapter, against a program that answers as it has been seen to."""

from collections.abc import Callable
from pathlib import Path

import pytest
from anyio import create_task_group, to_thread

from loadtest.comparison.exchange import Exchange, PeerUnavailable, Sampling
from loadtest.comparison.peers.llama_server import llama_server_of
from tests.loadtest.peers.asking import exchange_with, setup_of
from tests.loadtest.peers.conftest import Asked, on_both_backends
from tests.loadtest.peers.recorded_servers import (
    BEGIN,
    CUT_SHORT,
    DYING,
    ENDLESS,
    FAULTY,
    FINE,
    REFUSED,
    SENSELESS,
)
from tests.processes import Family

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("asked")]
MODEL = Path("model.gguf")


@on_both_backends
async def test_tokens_are_counted_by_the_servers_own_count(program: Path) -> None:
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        exchange = await exchange_with(peer, FINE, 2, 3)
    assert [n_tokens for _, n_tokens in exchange.arrivals] == [1, 2]
    assert (exchange.text, exchange.ended, exchange.n_evaluated) == ("aé", "length", 2)
    assert exchange.asked_at < exchange.arrivals[0][0] <= exchange.ended_at


async def test_where_ids_are_missing_they_are_those_of_the_text(program: Path) -> None:
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        exchange = await exchange_with(peer, FINE)
    assert exchange.tokens == list("aé".encode())


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FAULTY, "Context size has been exceeded."),
        (REFUSED, "status 400"),
        (CUT_SHORT, "the answer has no end"),
        (SENSELESS, "makes no sense"),
    ],
)
async def test_what_goes_wrong_is_in_the_exchange(program: Path, kind: int, error: str) -> None:
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        exchange = await exchange_with(peer, kind)
        assert (exchange.ended, error in exchange.error) == ("failed", True)
        assert (await exchange_with(peer, FINE)).ended == "length"


@on_both_backends
async def test_a_server_that_dies_leaves_its_last_words(program: Path) -> None:
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        exchange = await exchange_with(peer, DYING)
        assert exchange.n_generated == 1
        assert "llama-server has ended with status 3: " in exchange.error
        assert "out of tokens" in exchange.error
        assert (await peer.usage()).resident_bytes == 0


@on_both_backends
async def test_a_client_that_has_enough_goes_away(program: Path, left: Path) -> None:
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        exchange = await exchange_with(peer, ENDLESS, cancel_after=5)
        assert (exchange.ended, exchange.n_generated) == ("cancelled", 5)
        assert await to_thread.run_sync(left.read_text) == "they have left"


async def test_a_request_is_put_in_the_servers_words(
    program: Path, asked: Callable[[], Asked]
) -> None:
    sampling = Sampling(temperature=0.5, top_k=7, top_p=0.8, seed=9)
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        await exchange_with(
            peer, FINE, 2, sampling=sampling, json_schema={"type": "null"}, ignore_eos=False
        )
    path, body = next(each for each in asked() if each[0] == "/completion")
    assert (path, body["prompt"], body["n_predict"]) == ("/completion", [BEGIN, FINE, 2], 8)
    assert (body["temperature"], body["top_k"], body["top_p"], body["seed"]) == (0.5, 7, 0.8, 9)
    assert (body["json_schema"], body["ignore_eos"]) == ({"type": "null"}, False)
    assert (body["stream"], body["cache_prompt"], body["return_tokens"]) == (True, True, True)


async def test_an_image_stands_before_the_text(
    program: Path, asked: Callable[[], Asked], tmp_path: Path
) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(b"image")
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        await exchange_with(peer, *b"What?", image=image)
    body = next(body for path, body in asked() if path == "/completion")
    assert body["prompt"] == {
        "prompt_string": "<__image__>What?",
        "multimodal_data": ["aW1hZ2U="],
    }


async def test_the_context_is_that_of_all_slots(program: Path) -> None:
    setup = setup_of(MODEL, kv_unified=True)
    async with llama_server_of(program, setup, "b512", "version 7", n_batch=256) as peer:
        command = " ".join(peer.command)
        assert (peer.name, peer.version) == ("b512", "version 7")
    assert " -np 3 -c 3072 -b 256 -ub 256 -t 1 -tb 1 --kv-unified " in command


async def test_embeddings_have_a_server_of_their_own(program: Path) -> None:
    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        before = await peer.usage()
        assert await peer.embed([[1, 2], [3]]) > 0
        assert await peer.embed([[4]]) > 0
        after = await peer.usage()
    assert after.resident_bytes > 1.5 * before.resident_bytes
    assert 0 < after.anonymous_bytes < after.resident_bytes


@on_both_backends
async def test_streams_are_held_side_by_side(program: Path) -> None:
    exchanges: list[Exchange] = []

    async def exchange() -> None:
        exchanges.append(await exchange_with(peer, FINE))

    async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
        async with create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(exchange)
    assert [each.ended for each in exchanges] == ["length"] * 12


@on_both_backends
async def test_all_processes_end_with_the_block_also_when_it_fails(program: Path) -> None:
    families: list[Family] = []
    with pytest.raises(RuntimeError, match="measured enough"):
        async with llama_server_of(program, setup_of(MODEL), "llama-server", "") as peer:
            await peer.embed([[1]])
            families += [Family(server.process.pid) for server in peer.servers]
            raise RuntimeError("measured enough")
    assert [family.has_ended() for family in families] == [True, True]


async def test_a_server_that_cannot_start_is_unavailable_and_says_why(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho no such model\nexit 4\n")
    program.chmod(0o755)
    with pytest.raises(PeerUnavailable, match="ended with status 4: no such model"):
        async with llama_server_of(program, setup_of(MODEL), "llama-server", ""):
            pass
