"""Embeddings by a daemon on a real model, and by the command."""

import json
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from random import Random

import pytest

from runnerd.client import Client, RequestFailed, connect
from runnerd_protocol.messages import Prompt, TokensPart
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.engine.bert_files import SPECIAL, bert_file, random_bert
from tests.processes import run, serving

CLOSE = 1e-5
MODEL = "layers=2,dim=16,heads=2"


def mixed(n_inputs: int, n_longest: int) -> list[Prompt]:
    """Return inputs of seeded tokens, most of them short, a few long."""
    rng = Random(5)
    lengths = [max(1, int(n_longest * rng.random() ** 8)) for _ in range(n_inputs - 1)]
    lengths.insert(n_inputs // 2, n_longest)
    return [[TokensPart([rng.randrange(100, 40_000) for _ in range(n)])] for n in lengths]


def largest_difference(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.mark.llama
@pytest.mark.anyio
async def test_64_mixed_lengths_together_equal_one_by_one(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        inputs = mixed(64, 70)
        together = await client.embed(inputs, pooling="mean")
        alone = [(await client.embed([each], pooling="mean"))[0] for each in inputs]
    assert max(map(largest_difference, together, alone)) < CLOSE
    assert all(abs(sqrt(sum(x * x for x in each)) - 1) < CLOSE for each in together)


@pytest.mark.llama
@pytest.mark.anyio
async def test_a_model_tells_what_embeddings_it_makes(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        model = await client.model()
        assert (model.n_embd, model.n_embed, model.can_generate) == (576, 256, True)
        assert model.poolings == ["model", "mean", "last"]
        assert await too_long(client, [TokensPart([5] * 257)]) == (257, 256)


async def too_long(client: Client, prompt: Prompt) -> tuple[object, object]:
    with pytest.raises(RequestFailed) as caught:
        await client.embed([prompt])
    details = caught.value.failed.details
    return details["n_prompt"], details["n_embed"]


@pytest.mark.llama
@pytest.mark.anyio
async def test_an_encoder_is_served_for_embeddings_only(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    model = tmp_path / "encoder.gguf"
    words = ("▁red", "▁green", "▁blue")
    model.write_bytes(bert_file(random_bert(n_vocab=len(SPECIAL) + len(words)), words))
    async with (
        start_daemon_process(str(model), "--threads", "1", engine="llama") as daemon,
        connect(daemon.path) as client,
    ):
        assert not (await client.model()).can_generate
        with pytest.raises(RequestFailed) as caught:
            await client.complete("red")
        assert caught.value.failed.code == "unsupported"
        red, also_red, blue = await client.embed(["red", "Red", "blue"])
        assert largest_difference(red, also_red) < CLOSE < largest_difference(red, blue)
        await client.embed([""])  # what stands around it is something


# --- the command ---------------------------------------------------------------------------


def lines_of(output: str) -> list[list[float]]:
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["index"] for line in lines] == list(range(len(lines)))
    return [line["embedding"] for line in lines]


def test_embed_writes_a_line_of_json_for_each_text(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    with serving(socket, MODEL):
        done = run("embed", "one", "two", "-", f"--socket={socket}", stdin=b"three\none\n")
        assert done.code == 0, done
        vectors = lines_of(done.out)
        assert len(vectors) == 4
        assert vectors[0] == vectors[3] != vectors[1]
        assert abs(sqrt(sum(x * x for x in vectors[0])) - 1) < CLOSE
        refused = run("embed", "x" * 4000, f"--socket={socket}")
        assert refused.code == 1
        assert "prompt_too_long" in refused.err
        cut = run("embed", "x" * 4000, "--truncate", "--raw", f"--socket={socket}")
        assert (cut.code, len(lines_of(cut.out))) == (0, 1)


def test_embed_with_a_model_runs_a_daemon_of_its_own() -> None:
    done = run("embed", "one", f"--model={MODEL}", "--engine=reference", "--pooling=last")
    assert done.code == 0, done
    assert len(lines_of(done.out)) == 1


def test_embed_needs_one_daemon() -> None:
    assert run("embed", "one").code == 64
