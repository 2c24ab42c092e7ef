"""Numbers that no option should have, on every option there is."""

from collections.abc import Iterator
from math import inf, isfinite, nan
from types import UnionType
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import pytest

from runnerd.client import connect
from runnerd.engine.reference.tokenizer import N_VOCAB
from runnerd_protocol.messages import Delta, Failed, Finished, Generate, GetStatus, Status
from tests.daemon import RawClient, raw_client, running_daemon
from tests.e2e.asking import GREEDY, ask, frame, refusal

pytestmark = pytest.mark.anyio

MODEL = "layers=1,dim=8,heads=2,end_bias=-100"
HOSTILE: list[object] = [
    *(nan, inf, -inf, -0.0, -1, 1e308, 5e-324, 0, 1, 0.5),
    *(2**31, 2**63, 2**64 - 1, -(2**31), -(2**63), True, False, "1", "", None, [], {}),
]


def numeric_fields() -> Iterator[str]:
    """Yield the names of the request's fields that hold numbers."""
    for name, kind in get_type_hints(Generate, include_extras=True).items():
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        bare = {get_args(k)[0] if get_origin(k) is Annotated else k for k in kinds}
        if bare & {int, float} and name != "request_id":
            yield name


async def outcome(client: RawClient, request: bytes) -> tuple[list[Delta], Failed | Finished]:
    await client.send(request)
    deltas: list[Delta] = []
    while True:
        message = await client.receive()
        if isinstance(message, Failed | Finished):
            return deltas, message
        if isinstance(message, Delta):
            deltas.append(message)


def test_the_numeric_fields_are_found() -> None:
    assert {"temperature", "top_k", "seed", "logprobs", "n", "timeout_s"} <= {*numeric_fields()}


@pytest.mark.parametrize("field", list(numeric_fields()))
async def test_a_hostile_number_is_refused_by_name_or_gives_finite_text(field: str) -> None:
    async with (
        running_daemon(MODEL, n_slots=2) as daemon,
        raw_client(daemon) as client,
        connect(daemon.path) as neighbour,
    ):
        quiet = await ask(neighbour, "Once", max_tokens=8, **GREEDY)
        for value in HOSTILE:
            others = {"logprobs": 2} if field != "logprobs" else {}
            others |= {"max_tokens": 2} if field != "max_tokens" else {}
            deltas, end = await outcome(client, frame(**others, **{field: value}))
            if isinstance(end, Failed):
                if end.code == "queue_timeout":  # 5e-324 s are over at once
                    assert field == "queue_timeout_s" or field == "timeout_s"
                    continue
                assert end.code == "invalid_request", (value, end)
                assert end.details["field"] == field, (value, end)
                assert not deltas
                continue
            assert not isinstance(value, bool | str | list | dict), value
            assert value is None or isfinite(value)  # type: ignore[arg-type]
            for delta in deltas:
                assert all(isfinite(entry.logprob) for entry in delta.logprobs), value
        beside = await ask(neighbour, "Once", max_tokens=8, **GREEDY)
        assert beside.tokens == quiet.tokens
        await client.send(GetStatus(9))
        assert (await client.receive_a(Status)).state == "ready"


@pytest.mark.parametrize("value", [nan, inf, -inf, -1001, 1e308, True, "1", None, []])
async def test_a_bias_that_is_no_number_is_refused_by_its_token(value: object) -> None:
    async with running_daemon(MODEL) as daemon, raw_client(daemon) as client:
        _, end = await outcome(client, frame(logit_bias={65: value}))
        assert isinstance(end, Failed)
        assert end.code == "invalid_request"
        assert str(end.details["field"]).startswith("logit_bias")


@pytest.mark.parametrize(
    "token", [-(2**63), -1, N_VOCAB, N_VOCAB + 1, 2**31, 2**32, 2**32 + 65, 2**64 - 1, "a", 1.5]
)
async def test_a_bias_or_a_prompt_outside_the_vocabulary_names_it_and_its_limit(
    token: object,
) -> None:
    async with running_daemon(MODEL) as daemon, raw_client(daemon) as client:
        _, end = await outcome(client, frame(logit_bias={token: 1.0}))
        assert isinstance(end, Failed)
        assert end.code == "invalid_request", end
        assert str(end.details["field"]).startswith("logit_bias"), end
        prompt = [{"type": "tokens", "tokens": [65, token]}]
        _, end = await outcome(client, frame(prompt=prompt))
        assert isinstance(end, Failed)
        assert end.code == "invalid_request", end
        assert str(end.details["field"]).startswith("prompt[0].tokens[1]"), end
        _, end = await outcome(client, frame(max_tokens=1))
        assert isinstance(end, Finished)


@pytest.mark.parametrize(("token", "n_generated"), [(0, 3), (N_VOCAB - 1, 0)])
async def test_the_first_and_the_last_token_of_the_vocabulary_can_be_used(
    token: int, n_generated: int
) -> None:
    """The last one is an end token."""
    async with running_daemon(MODEL) as daemon, raw_client(daemon) as client:
        bias = {token: 1000.0}
        deltas, end = await outcome(
            client, frame(logit_bias=bias, max_tokens=3, return_tokens=True)
        )
        assert isinstance(end, Finished)
        assert end.n_generated == n_generated
        assert [t for delta in deltas for t in delta.tokens] == [token] * n_generated
        prompt = [{"type": "tokens", "tokens": [token]}]
        _, end = await outcome(client, frame(prompt=prompt, max_tokens=1))
        assert isinstance(end, Finished)


async def test_a_banned_token_never_comes_and_a_favoured_one_always_does() -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        favourite = await ask(client, "x", max_tokens=20, logit_bias={ord("q"): 1000.0})
        assert favourite.text == "q" * 20
        letters = {ord(char): -1000.0 for char in "aeiou "}
        without = await ask(client, "x", max_tokens=60, temperature=1.0, logit_bias=letters)
        assert not set(without.text) & set("aeiou ")


async def test_with_everything_banned_the_request_fails_at_once_and_alone() -> None:
    bans = dict.fromkeys(range(N_VOCAB), -1000.0)
    async with running_daemon(MODEL, n_slots=2) as daemon, connect(daemon.path) as client:
        async with client.generate("beside", max_tokens=300) as stream:
            await anext(stream)
            for temperature in (0.0, 1.0):
                failed = await refusal(client, "x", logit_bias=bans, temperature=temperature)
                assert failed.code in ("engine_failed", "invalid_request")
            assert (await stream.completion()).finished.n_generated == 300
        await daemon.has_all_slots()


async def test_more_biases_than_are_allowed_are_refused() -> None:
    async with running_daemon(MODEL) as daemon, raw_client(daemon) as client:
        for n_biases in (4097, 10**6):
            bias = dict.fromkeys(range(n_biases), 1.0)
            _, end = await outcome(client, frame(logit_bias=bias))
            assert isinstance(end, Failed)
            assert (end.code, end.details["field"]) == ("invalid_request", "logit_bias")
        _, end = await outcome(client, frame(max_tokens=1))
        assert isinstance(end, Finished)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 2])
async def test_a_seed_at_the_edge_repeats_itself(seed: int) -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        texts = [(await ask(client, "x", max_tokens=20, temperature=2.0, seed=seed)).text]
        texts += [(await ask(client, "x", max_tokens=20, temperature=2.0, seed=seed)).text]
        assert texts[0] == texts[1]
        other = await ask(
            client, "x", max_tokens=20, temperature=2.0, seed=(seed + 1) % (2**32 - 1)
        )
        assert other.text != texts[0]
