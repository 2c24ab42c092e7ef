"""Embeddings as clients ask for them: few and many, short, empty, too long, and wrong."""

from math import isclose, sqrt

import anyio
import pytest

from runnerd.client import RequestFailed, connect
from runnerd_protocol.messages import (
    Embed,
    Embeddings,
    Failed,
    Pooling,
    Prompt,
    TextPart,
    TokensPart,
)
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import IMPATIENCE_S, ask

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2,end_bias=-100"


def length(vector: list[float]) -> float:
    return sqrt(sum(value * value for value in vector))


def near(a: list[float], b: list[float], epsilon: float = 1e-6) -> bool:
    return all(isclose(x, y, abs_tol=epsilon) for x, y in zip(a, b, strict=True))


async def test_many_inputs_are_what_each_is_alone_in_order() -> None:
    inputs: list[Prompt] = [
        "I believe the meaning of life is",
        "Write a joke about AI from a very long prompt which will not be truncated",
        [TextPart("This is a test")],
        [TokensPart([65, 66, 67])],
        "x",
        "I believe the meaning of life is",
    ] * 5
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        together = [list(vector) for vector in await client.embed(inputs)]
        assert len(together) == len(inputs)
        for text, vector in zip(inputs[:6], together, strict=False):
            (alone,) = await client.embed([text])
            assert near(list(alone), vector)
            assert isclose(length(vector), 1.0, abs_tol=1e-5)
        assert together[0] == together[5] == together[6]
        assert not near(together[0], together[1], 0.01)


@pytest.mark.parametrize("pooling", ["mean", "last"])
async def test_equal_inputs_in_one_request_have_equal_vectors(pooling: Pooling) -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        vectors = await client.embed(["I believe the meaning of life is"] * 5, pooling=pooling)
        assert all(near(list(vectors[0]), list(vector)) for vector in vectors)
        raw = await client.embed(["a", "bb"], pooling=pooling, normalize=False)
        unit = await client.embed(["a", "bb"], pooling=pooling)
        for long, short in zip(raw, unit, strict=True):
            scale = length(list(long))
            assert near([value / scale for value in long], list(short), 1e-5)


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        ["", "a"],
        ["a", ""],
        [[]],
        ["a", [TokensPart([])]],
        [" "],
    ],
)
async def test_an_empty_input_is_answered_in_time_and_in_its_place(inputs: list[Prompt]) -> None:
    async with running_daemon(MODEL) as daemon, raw_client(daemon) as client:
        good = Embed(2, ["good"])
        await client.send(Embed(1, inputs), good)
        with anyio.fail_after(IMPATIENCE_S):
            answers = [await client.receive(), await client.receive()]
        answer = next(a for a in answers if getattr(a, "request_id", 0) == 1)
        if isinstance(answer, Failed):
            assert answer.code == "invalid_request"
            assert "inputs" in str(answer.details["field"])
        else:
            assert isinstance(answer, Embeddings)
            assert len(answer.vectors) == len(inputs) > 0
            await client.send(Embed(3, [inputs[-1]]))
            (alone,) = (await client.receive_a(Embeddings, 3)).vectors
            assert alone == answer.vectors[-1]


async def test_ten_thousand_inputs_come_in_order_and_others_go_on() -> None:
    inputs: list[Prompt] = [f"{number}" for number in range(10_000)]
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        async with client.generate("beside", max_tokens=400) as stream:
            await anext(stream)
            with anyio.fail_after(3 * PATIENCE_S):
                vectors = await client.embed(inputs)
            assert (await stream.completion()).finished.n_generated == 400
        assert len(vectors) == 10_000
        for number in (0, 1, 4999, 9999):
            (alone,) = await client.embed([f"{number}"])
            assert near(list(alone), list(vectors[number]))


async def test_an_input_too_long_is_refused_with_its_place_and_both_numbers() -> None:
    async with running_daemon(MODEL, n_batch=64) as daemon, connect(daemon.path) as client:
        n_most = (await client.model()).n_embed
        assert n_most > 0
        for n_tokens in (n_most - 1, n_most):
            assert len(await client.embed(["x" * (n_tokens - 1)])) == 1
        for n_tokens in (n_most + 1, 10 * n_most):
            with pytest.raises(RequestFailed) as caught:
                await client.embed(["fits", "x" * (n_tokens - 1)])
            failed = caught.value.failed
            assert failed.code == "prompt_too_long"
            assert failed.details["n_prompt"] == n_tokens
            assert failed.details["n_embed"] == n_most
            assert 1 in failed.details.values() or "inputs[1]" in str(failed.details)


async def test_an_input_that_may_be_cut_is_and_says_so() -> None:
    async with running_daemon(MODEL, n_batch=64) as daemon, raw_client(daemon) as client:
        async with connect(daemon.path) as other:
            n_most = (await other.model()).n_embed
        text = "".join(chr(97 + n % 26) for n in range(3 * n_most))
        await client.send(Embed(1, ["fits", text, text[:5]], truncate=True))
        cut = await client.receive_a(Embeddings)
        assert cut.truncated == [1]
        assert cut.n_tokens == [5, n_most, 6]
        await client.send(Embed(2, [text[: n_most - 1]]))
        assert (await client.receive_a(Embeddings)).vectors[0] == cut.vectors[1]


async def test_more_tokens_than_a_pass_holds_are_several_passes() -> None:
    async with running_daemon(MODEL, n_batch=64) as daemon, connect(daemon.path) as client:
        n_most = (await client.model()).n_embed
        inputs: list[Prompt] = ["y" * (n_most - 1 - i) for i in range(8)]
        vectors = await client.embed(inputs)
        for text, vector in zip(inputs, vectors, strict=True):
            (alone,) = await client.embed([text])
            assert near(list(alone), list(vector))


async def test_embeddings_leave_what_is_cached_alone() -> None:
    async with running_daemon(MODEL, n_slots=1) as daemon, connect(daemon.path) as client:
        first = await ask(client, "a text to remember", max_tokens=5, temperature=0.0)
        await client.embed(["another text", "a text to remember"])
        again = await ask(client, "a text to remember", max_tokens=5, temperature=0.0)
        assert again.finished.n_cached == first.finished.n_prompt - 1
        assert again.tokens == first.tokens


@pytest.mark.llama
async def test_a_real_model_embeds_what_is_alike_alike(smollm2: DaemonProcess) -> None:
    texts: list[Prompt] = [
        "The cat sat on the mat.",
        "A cat is sitting on a mat.",
        "Interest rates were raised by the central bank.",
    ]
    async with connect(smollm2.path) as client:
        a, b, c = [list(vector) for vector in await client.embed(texts, pooling="mean")]
        assert isclose(length(a), 1.0, abs_tol=1e-5)

        def alike(x: list[float], y: list[float]) -> float:
            return sum(p * q for p, q in zip(x, y, strict=True))

        assert alike(a, b) > alike(a, c)
        for text, vector in zip(texts, (a, b, c), strict=True):
            (alone,) = await client.embed([text], pooling="mean")
            assert near(list(alone), vector, 1e-5)
