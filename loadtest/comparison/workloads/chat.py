"""Conversations that go on: each turn repeats all that was said, and adds a little."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

import anyio

from loadtest.comparison.exchange import Ask, Exchange, Peer
from loadtest.comparison.figures import Figures
from loadtest.comparison.workloads.asking import Prompts, ask_one

FIRST_PROMPT = 200
NEW_TOKENS = (60, 120)  # of a later turn, at least and at most
ANSWER_TOKENS = (24, 48)
THINK_S = (0.1, 0.6)
FIRST_TURN = "turn 1"


class Line(NamedTuple):
    """What is said in a turn, how long it takes to think of, and how long the answer may be."""

    think_s: float
    new: list[int]
    max_tokens: int


async def chat(peer: Peer, seed: int, n_conversations: int, n_turns: int) -> list[Exchange]:
    """Conversations side by side, with time to think: whether what was said is evaluated again.

    A turn is all before it, the answer as it came, and new tokens. Where a system does not tell
    every token of an answer, its text is taken.
    """
    prompts = Prompts(peer, seed)
    scripts = [
        await _script(prompts, Random(f"{seed}/{number}"), n_turns)
        for number in range(n_conversations)
    ]
    seen: list[list[Exchange]] = [[] for _ in scripts]
    async with anyio.create_task_group() as tasks:
        for script, turns in zip(scripts, seen, strict=True):
            tasks.start_soon(_converse, peer, script, turns)
    return [turn for turns in seen for turn in turns]


def chat_figures(exchanges: Sequence[Exchange]) -> Figures:
    """Return the prompt tokens evaluated from turn 2 on, to those that were new then.

    Exchanges are those of one conversation after the other. New is what comes after the turn
    before and its answer; the last token of that answer, too, which nobody has evaluated yet.
    There is no figure where a system does not say what it evaluated.
    """
    n_evaluated = n_new = 0
    for before, turn in pairwise(exchanges):
        if turn.role != FIRST_TURN:
            if turn.n_evaluated is None:
                return {}
            n_evaluated += turn.n_evaluated
            n_new += turn.n_prompt - (before.n_prompt + before.n_generated - 1)
    return {"evaluated_ratio": n_evaluated / n_new} if n_new else {}


async def _script(prompts: Prompts, rng: Random, n_turns: int) -> list[Line]:
    """Return what one side says, so that it says the same to every system."""
    return [
        Line(
            think_s=rng.uniform(*THINK_S),
            new=await prompts.new(rng.randint(*NEW_TOKENS) if number else FIRST_PROMPT),
            max_tokens=rng.randint(*ANSWER_TOKENS),
        )
        for number in range(n_turns)
    ]


async def _converse(peer: Peer, script: Sequence[Line], turns: list[Exchange]) -> None:
    said: list[int] = []
    for number, line in enumerate(script, start=1):
        await anyio.sleep(line.think_s)
        said = [*said, *line.new]
        ask = Ask(role=f"turn {number}", prompt=said, max_tokens=line.max_tokens)
        turns.append(await ask_one(peer, ask))
        said += await _answer(peer, turns[-1])


async def _answer(peer: Peer, turn: Exchange) -> list[int]:
    if len(turn.tokens) == turn.n_generated:
        return turn.tokens
    return await peer.tokenize(turn.text)
