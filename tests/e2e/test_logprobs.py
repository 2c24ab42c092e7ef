"""Log-probabilities: an entry for each token, with its text, and true."""

from collections.abc import Mapping
from math import exp, log

import pytest

from runnerd.client import connect
from runnerd.engine.reference.tokenizer import N_VOCAB
from runnerd_protocol.messages import Delta, Failed, Finished
from tests.daemon import raw_client, running_daemon
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, Answer, ask, ask_all, frame, literal

pytestmark = pytest.mark.anyio

MODEL = "layers=1,dim=16,heads=2,end_bias=-100"
TEXTS = ["plain text", "日本語 and 👩‍👩‍👧‍👦", "e\u0301\0\x7f"]


def check(answer: Answer, n_top: int) -> None:
    """Assert that the entries are those of the text, and could be probabilities."""
    data = b"".join(entry.data for entry in answer.logprobs)
    assert data.decode(errors="replace") == answer.text
    for delta in answer.deltas:  # an entry comes with its text
        assert not delta.logprobs or delta.text or not any(e.data for e in delta.logprobs)
    for entry in answer.logprobs:
        assert entry.logprob <= 0.0
        assert len(entry.top) == min(n_top, N_VOCAB)
        values = [top.logprob for top in entry.top]
        assert values == sorted(values, reverse=True)
        assert sum(map(exp, values)) <= 1 + 1e-3
        assert all(value <= 0.0 for value in values)
        assert len({top.token for top in entry.top}) == len(entry.top)
        for top in entry.top:
            if top.token == entry.token:
                assert top.logprob == pytest.approx(entry.logprob)
                assert top.data == entry.data
        if entry.top and entry.token not in [top.token for top in entry.top]:
            assert entry.logprob <= values[-1] + 1e-6


@pytest.mark.parametrize("n_top", [0, 1, 5, 100])
@pytest.mark.parametrize("text", TEXTS[:2])
async def test_each_token_of_a_forced_text_has_its_entry(text: str, n_top: int) -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "say", grammar=literal(text), logprobs=n_top)
    assert answer.text == text
    assert [entry.token for entry in answer.logprobs] == list(text.encode())
    assert [entry.data for entry in answer.logprobs] == [bytes([b]) for b in text.encode()]
    check(answer, n_top)


@pytest.mark.parametrize(
    ("stop", "listed"),
    [("<END>", "alpha beta"), ("beta", "alpha "), ("alpha", ""), ("never", None)],
)
async def test_what_a_stop_string_cuts_off_is_not_listed(stop: str, listed: str | None) -> None:
    text = "alpha beta<END>gamma"
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "say", grammar=literal(text), logprobs=3, stop=[stop])
    data = b"".join(entry.data for entry in answer.logprobs)
    assert data.decode() == answer.text == (text if listed is None else listed)
    check(answer, 3)


@pytest.mark.parametrize("stop", ["<E", "</end>"])
async def test_held_back_text_brings_its_entries_with_it(stop: str) -> None:
    text = "a < b <= c </en"
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "say", grammar=literal(text), logprobs=0, stop=[stop])
    assert answer.text == text
    listed, text = b"", ""
    for delta in answer.deltas:
        listed += b"".join(entry.data for entry in delta.logprobs)
        text += delta.text
        assert listed.decode() == text


async def test_they_are_those_of_the_model_before_anything_is_done_to_them() -> None:
    changes: list[Mapping[str, object]] = [
        {"temperature": 3.0, "seed": 1},
        {"temperature": 0.0, "logit_bias": {101: 10.0}},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 0.0, "repeat_penalty": 2.0},
        {"grammar": literal("anything")},
    ]
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        plain = await ask(client, "Once", logprobs=100, max_tokens=1, **GREEDY)
        wanted = {top.token: top.logprob for top in plain.logprobs[0].top}
        for options in changes:
            other = await ask(client, "Once", logprobs=100, max_tokens=1, **options)
            (entry,) = other.logprobs
            assert {top.token: top.logprob for top in entry.top} == pytest.approx(wanted)
            assert entry.logprob == pytest.approx(wanted.get(entry.token, entry.logprob))


async def test_side_by_side_they_are_what_they_are_alone() -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        asks = [
            (f"{i} bottles", {"logprobs": i % 4, "max_tokens": 12, "temperature": 1.0, "seed": i})
            for i in range(24)
        ]
        together = await ask_all(client, asks)
        for (prompt, options), answer in zip(asks, together, strict=True):
            alone = await ask(client, prompt, cache_scope="alone", **options)
            assert alone.logprobs == answer.logprobs
            check(answer, options["logprobs"] if isinstance(options["logprobs"], int) else 0)


async def test_without_a_wish_there_are_none() -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        assert not (await ask(client, "x", max_tokens=5)).logprobs


async def test_a_whole_answer_of_the_greatest_number_arrives() -> None:
    async with running_daemon(MODEL, n_ctx=512) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "x", logprobs=100, max_tokens=400, **GREEDY)
    assert len(answer.logprobs) == 400
    check(answer, 100)


@pytest.mark.parametrize("n_top", [-1, 101, 2**63, 1.5, "1", True])
async def test_an_impossible_number_is_refused_by_its_field(n_top: object) -> None:
    async with running_daemon(MODEL) as daemon, raw_client(daemon) as client:
        await client.send(frame(logprobs=n_top))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.details["field"]) == ("invalid_request", "logprobs")
        await client.send(frame(logprobs=1, max_tokens=2))
        deltas = []
        while not isinstance(message := await client.receive(), Finished):
            deltas += [message] if isinstance(message, Delta) else []
        assert sum(len(delta.logprobs) for delta in deltas) == 2


@pytest.mark.llama
async def test_a_real_models_entries_are_those_of_its_text(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        text = "naïve 日本 👩‍👩‍👧 x"
        forced = await ask(client, "Say:", grammar=literal(text), logprobs=5)
        assert forced.text == text
        check(forced, 5)
        assert [entry.token for entry in forced.logprobs] == forced.tokens[: len(forced.logprobs)]
        greedy = await ask(client, "1, 2, 3, 4,", logprobs=5, max_tokens=20, **GREEDY)
        check(greedy, 5)
        for entry in greedy.logprobs:
            assert entry.token == entry.top[0].token
            assert entry.logprob > log(1 / 49152)
