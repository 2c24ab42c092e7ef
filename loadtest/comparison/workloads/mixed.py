"""Requests as they come in practice: at any time, short and long, and some given up."""

from random import Random
from typing import NamedTuple

import anyio

from loadtest.comparison.exchange import Ask, Exchange, Peer
from loadtest.comparison.workloads.asking import Prompts, begin

PROMPT = (120, 0.9)  # median, and sigma of the logarithm
ANSWER = (48, 0.7)
LEAST_PROMPT, MOST_PROMPT = 8, 1200
LEAST_ANSWER, MOST_ANSWER = 12, 192
CANCELLED = 0.15  # the share of requests whose client leaves after a part of the answer


class Arrival(NamedTuple):
    """When a request comes, and what it is."""

    after_s: float
    n_prompt: int
    max_tokens: int
    cancel_after: int


def arrivals(seed: int, n_requests: int, rate_per_s: float) -> list[Arrival]:
    """Return a Poisson process of requests with log-normal lengths."""
    rng = Random(f"mixed/{seed}")
    after_s = 0.0
    found = []
    for _ in range(n_requests):
        after_s += rng.expovariate(rate_per_s)
        n_prompt = _length(rng, PROMPT, LEAST_PROMPT, MOST_PROMPT)
        max_tokens = _length(rng, ANSWER, LEAST_ANSWER, MOST_ANSWER)
        cancel_after = max_tokens // 2 if rng.random() < CANCELLED else 0
        found.append(Arrival(after_s, n_prompt, max_tokens, cancel_after))
    return found


async def mixed(peer: Peer, seed: int, n_requests: int, rate_per_s: float) -> list[Exchange]:
    """Poisson arrivals, log-normal lengths, some cancelled: how even service stays in practice."""
    prompts = Prompts(peer, seed)
    asks = [
        (
            each.after_s,
            Ask(
                role="request",
                prompt=await prompts.new(each.n_prompt),
                max_tokens=each.max_tokens,
                cancel_after=each.cancel_after,
            ),
        )
        for each in arrivals(seed, n_requests, rate_per_s)
    ]
    exchanges: list[Exchange] = []
    started_at = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for after_s, ask in asks:
            await anyio.sleep_until(started_at + after_s)
            exchanges.append(begin(ask))
            tasks.start_soon(peer.ask, ask, exchanges[-1])
    return exchanges


def _length(rng: Random, typical: tuple[int, float], least: int, most: int) -> int:
    """Return a length from a log-normal distribution, cut off at both ends."""
    middle, sigma = typical
    return min(most, max(least, round(middle * rng.lognormvariate(0.0, sigma))))
