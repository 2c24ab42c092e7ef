"""Chats over every kind of model and cache: whatever is shared, forked, put back or aborted.

A request says what it says on a cold engine of its own, and what was evaluated is reused.
"""

from random import Random
from typing import Literal

import pytest

from runnerd.core.batch import Adapter, CheckpointRestore, CheckpointSave, KVCopy, KVShift, Sampling
from runnerd.core.prompt import Part, TextPart
from runnerd.core.sequence import Options
from runnerd.engine.reference import ReferenceOptions
from runnerd.engine.reference.tokenizer import END_TOKENS
from tests.core.driven import TINY, Drive, Request, expanded, machine, said_alone

KV = Literal["split", "unified"]
N_CTX = 320
KINDS = {
    # With one layer what was shifted is what is evaluated again, so a fork changes nothing.
    "one layer": ReferenceOptions(layers=1, dim=8, heads=2),
    "no shift": ReferenceOptions(layers=2, dim=8, heads=2, shift=False),
    "window": ReferenceOptions(layers=2, dim=8, heads=2, window=20),
    "window with spare cells": ReferenceOptions(layers=2, dim=8, heads=2, window=20, spare=40),
    "recurrent": ReferenceOptions(layers=1, dim=8, heads=2, recurrent=True),
    "hybrid": ReferenceOptions(layers=3, dim=8, heads=2, recurrent=True, window=20),
}
WORDS = ("the cat ", "sat on a mat ", "and then ", "it ran ", "why? ")


def chat(rng: Random) -> list[Part]:
    """Return the parts of a chat, turn by turn."""
    parts: list[Part] = [TextPart("<|im_start|>system\n", special=True), TextPart("be brief" * 4)]
    for _ in range(4):
        said = "".join(rng.choice(WORDS) for _ in range(rng.randint(2, 9)))
        parts += [TextPart("<|im_end|><|im_start|>user\n", special=True), TextPart(said)]
    return parts


def chat_requests(rng: Random, n_requests: int, *, with_adapters: bool = False) -> list[Request]:
    """Return requests that are turns of a few chats; some fill the context."""
    chats = [chat(rng) for _ in range(3)]
    requests = []
    for _ in range(n_requests):
        turns = rng.choice(chats)[: 2 * rng.randint(1, 5)]
        sampling = Sampling(
            temperature=rng.choice((0.0, 1.0)),
            top_k=rng.choice((0, 5)),
            repeat_penalty=rng.choice((1.0, 1.3)),
            logit_bias=tuple((token, -3.0) for token in END_TOKENS),
            seed=rng.randrange(1000),
        )
        adapters = (Adapter(rng.choice(TINY)),) if with_adapters and rng.random() < 0.5 else ()
        options = Options(
            sampling=sampling,
            max_tokens=rng.choice((1, 8, 24, 200)),
            n_keep=rng.choice((0, 40)),
            truncate=True,
            shift=rng.random() < 0.5,
            adapters=adapters,
            stops=rng.choice(((), ("e",), ("an", "ss"))),
        )
        requests.append((expanded(*turns), options))
    return requests


def driven(
    rng: Random,
    requests: list[Request],
    kind: str,
    kv: KV,
    *,
    n_cells: int = 0,
    abort: bool = False,
) -> Drive:
    """Run requests in a crowd; with aborts now and then, anywhere in a step."""
    options = KINDS[kind]
    sizes = {"n_slots": 4, "n_ctx": N_CTX, "n_batch": 64, "n_ubatch": 8}
    with machine(options, kv="auto" if n_cells else kv, n_cells=n_cells, **sizes) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            for _ in range(rng.randrange(8)):
                if abort and rng.random() < 0.5:
                    engine.faults.abort_after(rng.randrange(5))
                drive.step(elapsed_s=rng.random() * 0.1)
        drive.run()
    return drive


def assert_as_alone(drive: Drive, requests: list[Request], kind: str) -> None:
    tokens, endings = said_alone(requests, KINDS[kind], n_ctx=N_CTX)
    assert drive.tokens == tokens
    assert drive.endings == endings


@pytest.mark.parametrize("kv", ["split", "unified"])
@pytest.mark.parametrize("kind", KINDS)
def test_chats_in_a_crowd_say_what_they_say_on_a_cold_engine(kind: str, kv: KV) -> None:
    rng = Random(kind + kv)
    requests = chat_requests(rng, 9, with_adapters=True)
    drive = driven(rng, requests, kind, kv)
    assert_as_alone(drive, requests, kind)
    assert sum(drive.n_cached.values()) > 0


@pytest.mark.parametrize("kv", ["split", "unified"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_aborted_anywhere_change_nothing_that_is_said(kind: str, kv: KV) -> None:
    rng = Random(kind + kv)
    requests = chat_requests(rng, 8)
    drive = driven(rng, requests, kind, kv, abort=True)
    assert_as_alone(drive, requests, kind)
    assert drive.n_aborted > 0


@pytest.mark.parametrize("kind", KINDS)
def test_suspended_chats_say_what_they_say_on_a_cold_engine(kind: str) -> None:
    rng = Random(kind)
    requests = chat_requests(rng, 12)
    drive = driven(rng, requests, kind, "unified", n_cells=N_CTX + 100)
    assert_as_alone(drive, requests, kind)
    assert drive.n_suspended > 0


@pytest.mark.parametrize("kv", ["split", "unified"])
def test_a_prompt_that_is_forked_and_then_shifted_is_as_if_it_were_alone(kv: KV) -> None:
    prompt, _ = chat_requests(Random(5), 1)[0]
    requests: list[Request] = [
        (prompt, Options(Sampling(temperature=1.0, ignore_end=True, seed=seed), 400, shift=True))
        for seed in range(3)
    ]
    drive = driven(Random(5), requests, "one layer", kv)
    assert_as_alone(drive, requests, "one layer")
    assert drive.edits[KVCopy] > 0
    assert drive.edits[KVShift] > 0


@pytest.mark.parametrize("kv", ["split", "unified"])
@pytest.mark.parametrize("kind", ["window", "recurrent", "hybrid"])
def test_the_next_turn_of_a_chat_goes_on_from_a_checkpoint(kind: str, kv: KV) -> None:
    parts = chat(Random(2))
    requests = [(expanded(*parts[: 2 * n]), Options(max_tokens=30)) for n in range(2, 6)]
    with machine(KINDS[kind], n_slots=2, n_ctx=N_CTX, kv=kv) as engine:
        drive = Drive(engine)
        for seq_id, request in enumerate(requests):
            drive.submit(seq_id, request)
            drive.run()
    assert_as_alone(drive, requests, kind)
    assert drive.edits[CheckpointSave] > 0
    assert drive.edits[CheckpointRestore] > 0
    assert reused(drive, requests) >= 0.3


def reused(drive: Drive, requests: list[Request]) -> float:
    """Return which share of all prompts but the first came out of the cache."""
    n_cached = sum(drive.n_cached.values())
    return n_cached / sum(len(prompt.inputs) for prompt, _ in requests[1:])
