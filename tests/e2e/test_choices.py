"""Several completions of one prompt, in one request."""

from typing import Literal

import anyio
import pytest

from runnerd.client import connect
from runnerd_protocol.messages import Accepted, Cancel, Delta, Failed, Finished, Generate
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.e2e.asking import ask, literal

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2,end_bias=-100"


@pytest.mark.parametrize("n", [2, 3, 9])
async def test_each_choice_is_what_its_seed_gives_alone(n: int) -> None:
    async with running_daemon(MODEL, n_slots=4) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "Once", n=n, max_tokens=12, temperature=1.5, seed=100)
        finished = answer.finished
        assert len(finished.choices) == n
        assert [choice.seed for choice in finished.choices] == list(range(100, 100 + n))
        assert finished.n_generated == 12 * n
        assert len({answer.of(index) for index in range(n)}) == n
        for index in range(n):
            alone = await ask(
                client, "Once", max_tokens=12, temperature=1.5, seed=100 + index, cache_scope="a"
            )
            assert answer.of(index) == alone.text
            assert finished.choices[index].n_text_bytes == len(alone.text.encode())
        await daemon.has_all_slots()


async def test_one_choice_has_no_list_of_choices() -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "Once", n=1, max_tokens=3)
    assert answer.finished.choices == []
    assert {delta.index for delta in answer.deltas} == {0}


@pytest.mark.parametrize("kv", ["split", "unified"])
async def test_choices_share_the_evaluation_of_their_prompt(
    kv: Literal["split", "unified"],
) -> None:
    prompt = "A long prompt that nobody wants to evaluate more often than once. " * 5
    async with (
        running_daemon(MODEL, n_slots=4, kv=kv) as daemon,
        connect(daemon.path) as client,
    ):
        answer = await ask(client, prompt, n=4, max_tokens=4, temperature=1.0)
        status = await client.status()
        n_prompt = 1 + len(prompt)
        assert answer.finished.n_prompt == n_prompt
        assert status.n_prompt_tokens < 1.2 * n_prompt
        cached = [choice.n_cached for choice in answer.finished.choices]
        assert sorted(cached)[1:] == pytest.approx([n_prompt - 1] * 3, abs=0.1 * n_prompt)


async def test_choices_end_each_in_its_own_way() -> None:
    async with (
        running_daemon("layers=1,dim=16,heads=2,end_bias=2") as daemon,
        connect(daemon.path) as client,
    ):
        answer = await ask(client, "x", n=16, max_tokens=10, temperature=2.0, seed=1)
    reasons = {choice.reason for choice in answer.finished.choices}
    assert reasons == {"stop", "length"}
    for index, choice in enumerate(answer.finished.choices):
        assert len(answer.of(index).encode()) == choice.n_text_bytes
        assert (choice.n_generated == 10) == (choice.reason == "length")
    total = sum(choice.n_text_bytes for choice in answer.finished.choices)
    assert answer.finished.n_text_bytes == total


async def test_a_cancel_ends_all_choices_with_one_answer() -> None:
    async with running_daemon(MODEL, n_slots=2) as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "x", n=5, shift=True))
        await client.receive_a(Delta)
        await client.send(Cancel(1))
        with anyio.fail_after(PATIENCE_S):
            finished = await client.receive_a(Finished)
        assert finished.reason == "cancelled"
        assert len(finished.choices) == 5
        await client.send(Generate(1, "y", max_tokens=1))
        assert isinstance(await client.receive(), Accepted)
        await daemon.has_all_slots()


async def test_a_choice_that_fails_fails_the_request_once() -> None:
    async with running_daemon(MODEL, n_slots=4) as daemon, raw_client(daemon) as client:
        daemon.engine.faults.nan_for(3)
        await client.send(Generate(1, "x", n=4, shift=True))
        with anyio.fail_after(PATIENCE_S):
            failed = await client.receive_a(Failed)
        assert failed.code == "engine_failed"
        await client.send(Generate(2, "y", max_tokens=1))
        while not isinstance(message := await client.receive(), Finished):
            assert getattr(message, "request_id", None) == 2
        await daemon.has_all_slots()


async def test_choices_of_a_forced_text_are_all_of_it() -> None:
    async with running_daemon(MODEL, n_slots=2) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "x", n=5, grammar=literal("日本"), logprobs=1)
    assert [answer.of(index) for index in range(5)] == ["日本"] * 5
    entries = [e for d in answer.deltas if d.index == 3 for e in d.logprobs]
    assert b"".join(entry.data for entry in entries).decode() == "日本"
